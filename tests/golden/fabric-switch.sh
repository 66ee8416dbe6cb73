set -e
ip -batch - <<'NAMESPACES'
netns add chorale-x-0
netns add chorale-x-1
netns add chorale-x-2
NAMESPACES
set -e
nsenter --net=/run/netns/chorale-x-0 sh -e <<'NODE'
cd /proc/sys/net/ipv4
echo 1 > ip_forward
for file in conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
echo reno > tcp_congestion_control
echo 131072 > tcp_limit_output_bytes
echo 0 > tcp_slow_start_after_idle
echo 1 > tcp_no_metrics_save
echo 4096 4194304 16777216 > tcp_rmem
echo 4096 65536 16777216 > tcp_wmem
ip -batch - <<'DEVICES'
link set lo up
link add node mtu 9000 type veth peer name node-peer
address add 10.99.0.1/32 dev node
link set node up
link set node-peer up
link set to2 mtu 9000 gso_max_size 25000 txqueuelen 4096 arp off up
route add 10.99.0.2/32 dev to2 src 10.99.0.1 initcwnd 56 cwnd lock 56 initrwnd 56
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to2 root noqueue
QUEUES
NODE
nsenter --net=/run/netns/chorale-x-1 sh -e <<'NODE'
cd /proc/sys/net/ipv4
echo 1 > ip_forward
for file in conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
echo reno > tcp_congestion_control
echo 131072 > tcp_limit_output_bytes
echo 0 > tcp_slow_start_after_idle
echo 1 > tcp_no_metrics_save
echo 4096 4194304 16777216 > tcp_rmem
echo 4096 65536 16777216 > tcp_wmem
ip -batch - <<'DEVICES'
link set lo up
link add node mtu 9000 type veth peer name node-peer
address add 10.99.0.2/32 dev node
link set node up
link set node-peer up
link set to2 mtu 9000 gso_max_size 25000 txqueuelen 4096 arp off up
route add 10.99.0.1/32 dev to2 src 10.99.0.2 initcwnd 56 cwnd lock 56 initrwnd 56
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to2 root noqueue
QUEUES
NODE
nsenter --net=/run/netns/chorale-x-2 sh -e <<'NODE'
cd /proc/sys/net/ipv4
echo 1 > ip_forward
for file in conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
echo reno > tcp_congestion_control
echo 131072 > tcp_limit_output_bytes
echo 0 > tcp_slow_start_after_idle
echo 1 > tcp_no_metrics_save
echo 4096 4194304 16777216 > tcp_rmem
echo 4096 65536 16777216 > tcp_wmem
ip -batch - <<'DEVICES'
link set lo up
link set to0 mtu 9000 gso_max_size 25000 txqueuelen 4096 arp off up
link set to1 mtu 9000 gso_max_size 25000 txqueuelen 4096 arp off up
route add 10.99.0.1/32 dev to0 initcwnd 56 cwnd lock 56 initrwnd 56
route add 10.99.0.2/32 dev to1 initcwnd 56 cwnd lock 56 initrwnd 56
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to0 root noqueue
qdisc add dev to1 root noqueue
QUEUES
NODE
