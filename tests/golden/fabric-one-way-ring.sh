set -e
ip -batch - <<'CABLES'
netns add chorale-x-0
netns add chorale-x-1
netns add chorale-x-2
link add to1 netns chorale-x-0 mtu 9000 address 02:00:00:00:00:01 type veth peer name to0 netns chorale-x-1 mtu 9000 address 02:00:00:00:00:01
link add to2 netns chorale-x-0 mtu 9000 address 02:00:00:00:00:01 type veth peer name to0 netns chorale-x-2 mtu 9000 address 02:00:00:00:00:01
link add to2 netns chorale-x-1 mtu 9000 address 02:00:00:00:00:01 type veth peer name to1 netns chorale-x-2 mtu 9000 address 02:00:00:00:00:01
CABLES
nsenter --net=/run/netns/chorale-x-0 sh -e <<'NODE'
echo 1 > /proc/sys/net/ipv4/ip_forward
for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
ip -batch - <<'DEVICES'
link set lo up
link add node mtu 9000 type veth peer name node-peer
address add 10.99.0.1/32 dev node
link set node up
link set node-peer up
link set to1 arp off up
link set to2 arp off up
route add 10.99.0.2/32 dev to1 src 10.99.0.1
route add 10.99.0.3/32 dev to1 src 10.99.0.1
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to1 root tbf rate 50000000bit burst 18028 limit 1268028
qdisc add dev to1 clsact
filter add dev to1 egress protocol ip u32 match ip dst 10.99.0.3/32 match ip protocol 6 0xff match u16 0 0xff80 at 2 action mirred egress redirect dev to2
QUEUES
NODE
nsenter --net=/run/netns/chorale-x-1 sh -e <<'NODE'
echo 1 > /proc/sys/net/ipv4/ip_forward
for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
ip -batch - <<'DEVICES'
link set lo up
link add node mtu 9000 type veth peer name node-peer
address add 10.99.0.2/32 dev node
link set node up
link set node-peer up
link set to0 arp off up
link set to2 arp off up
route add 10.99.0.1/32 dev to2 src 10.99.0.2
route add 10.99.0.3/32 dev to2 src 10.99.0.2
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to2 root tbf rate 50000000bit burst 18028 limit 1268028
qdisc add dev to2 clsact
filter add dev to2 egress protocol ip u32 match ip dst 10.99.0.1/32 match ip protocol 6 0xff match u16 0 0xff80 at 2 action mirred egress redirect dev to0
QUEUES
NODE
nsenter --net=/run/netns/chorale-x-2 sh -e <<'NODE'
echo 1 > /proc/sys/net/ipv4/ip_forward
for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do if [ -e $file ]; then echo 1 > $file; fi; done
ip -batch - <<'DEVICES'
link set lo up
link add node mtu 9000 type veth peer name node-peer
address add 10.99.0.3/32 dev node
link set node up
link set node-peer up
link set to0 arp off up
link set to1 arp off up
route add 10.99.0.1/32 dev to0 src 10.99.0.3
route add 10.99.0.2/32 dev to0 src 10.99.0.3
DEVICES
tc -batch - <<'QUEUES'
qdisc add dev to0 root tbf rate 50000000bit burst 18028 limit 1268028
qdisc add dev to0 clsact
filter add dev to0 egress protocol ip u32 match ip dst 10.99.0.2/32 match ip protocol 6 0xff match u16 0 0xff80 at 2 action mirred egress redirect dev to1
QUEUES
NODE
