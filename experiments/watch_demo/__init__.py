"""`make demo-watch`: a link is cut while a job trains, and the job goes on with a schedule for what is left."""
