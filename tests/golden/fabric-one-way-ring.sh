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
link set to1 mtu 9000 gso_max_size 18750 txqueuelen 4096 arp off up
link set to2 mtu 9000 gso_max_size 18750 txqueuelen 4096 arp off up
route add 10.99.0.2/32 dev to1 src 10.99.0.1 initcwnd 15 cwnd lock 15 initrwnd 15
route add 10.99.0.3/32 dev to1 src 10.99.0.1 initcwnd 15 cwnd lock 15 initrwnd 15
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to1 root noqueue
qdisc add dev to2 root noqueue
qdisc add dev to1 clsact
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 40 0xffff at 2 match u8 0x50 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 44 0xffff at 2 match u8 0x60 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 48 0xffff at 2 match u8 0x70 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 52 0xffff at 2 match u8 0x80 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 56 0xffff at 2 match u8 0x90 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 60 0xffff at 2 match u8 0xa0 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 64 0xffff at 2 match u8 0xb0 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 68 0xffff at 2 match u8 0xc0 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 72 0xffff at 2 match u8 0xd0 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 76 0xffff at 2 match u8 0xe0 0xf0 at 32 action mirred egress redirect dev to2
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 80 0xffff at 2 match u8 0xf0 0xf0 at 32 action mirred egress redirect dev to2
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
link set to0 mtu 9000 gso_max_size 18750 txqueuelen 4096 arp off up
link set to2 mtu 9000 gso_max_size 18750 txqueuelen 4096 arp off up
route add 10.99.0.1/32 dev to2 src 10.99.0.2 initcwnd 15 cwnd lock 15 initrwnd 15
route add 10.99.0.3/32 dev to2 src 10.99.0.2 initcwnd 15 cwnd lock 15 initrwnd 15
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to0 root noqueue
qdisc add dev to2 root noqueue
qdisc add dev to2 clsact
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 40 0xffff at 2 match u8 0x50 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 44 0xffff at 2 match u8 0x60 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 48 0xffff at 2 match u8 0x70 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 52 0xffff at 2 match u8 0x80 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 56 0xffff at 2 match u8 0x90 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 60 0xffff at 2 match u8 0xa0 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 64 0xffff at 2 match u8 0xb0 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 68 0xffff at 2 match u8 0xc0 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 72 0xffff at 2 match u8 0xd0 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 76 0xffff at 2 match u8 0xe0 0xf0 at 32 action mirred egress redirect dev to0
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 80 0xffff at 2 match u8 0xf0 0xf0 at 32 action mirred egress redirect dev to0
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
link add node mtu 9000 type veth peer name node-peer
address add 10.99.0.3/32 dev node
link set node up
link set node-peer up
link set to0 mtu 9000 gso_max_size 18750 txqueuelen 4096 arp off up
link set to1 mtu 9000 gso_max_size 18750 txqueuelen 4096 arp off up
route add 10.99.0.1/32 dev to0 src 10.99.0.3 initcwnd 15 cwnd lock 15 initrwnd 15
route add 10.99.0.2/32 dev to0 src 10.99.0.3 initcwnd 15 cwnd lock 15 initrwnd 15
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to0 root noqueue
qdisc add dev to1 root noqueue
qdisc add dev to0 clsact
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 40 0xffff at 2 match u8 0x50 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 44 0xffff at 2 match u8 0x60 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 48 0xffff at 2 match u8 0x70 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 52 0xffff at 2 match u8 0x80 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 56 0xffff at 2 match u8 0x90 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 60 0xffff at 2 match u8 0xa0 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 64 0xffff at 2 match u8 0xb0 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 68 0xffff at 2 match u8 0xc0 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 72 0xffff at 2 match u8 0xd0 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 76 0xffff at 2 match u8 0xe0 0xf0 at 32 action mirred egress redirect dev to1
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u8 0x45 0xff at 0 match u16 80 0xffff at 2 match u8 0xf0 0xf0 at 32 action mirred egress redirect dev to1
QUEUES
NODE
