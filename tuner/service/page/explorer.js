// The API explorer, with the token of this tab.

const TOKEN = "chorale-token";

const dark = matchMedia("(prefers-color-scheme: dark)");
const recolour = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", recolour);
recolour();

window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#explorer",
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor: (request) => {
    const token = sessionStorage.getItem(TOKEN);
    if (token && !request.headers.Authorization) request.headers.Authorization = `Bearer ${token}`;
    return request;
  },
});
