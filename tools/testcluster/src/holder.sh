# Becomes one node of a test cluster: runs in fresh mount, host name and network namespaces, arranges them, and then
# holds them open. Every node has the standard paths, so that one ordinary DaemonSet fits all; everything that a node
# writes lands in its own folder, and nothing is made in the machine's own file systems.
#
# $1 the cluster's state folder, $2 the folder of the tools, $3 the node's folder, $4 the node's name
set -eu
state=$1 tools=$2 folder=$3 name=$4

echo "$name" > /proc/sys/kernel/hostname

# What must stay visible at its path is put aside before its parent is covered.
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/aside /run/aside/state /run/aside/tools /run/aside/cgroup
mount --bind "$state" /run/aside/state
mount --bind "$tools" /run/aside/tools
mount --rbind /sys/fs/cgroup /run/aside/cgroup
for parent in /var/lib /var/log /opt; do
	mount -t tmpfs -o mode=755 tmpfs "$parent"
done
mkdir -p "$state"
mount --move /run/aside/state "$state"
if [ -d "$tools" ]; then
	umount /run/aside/tools
else
	mkdir -p "$tools"
	mount --move /run/aside/tools "$tools"
fi
mkdir -p "$folder/etc-upper" "$folder/etc-work"
mount -t overlay -o "lowerdir=/etc,upperdir=$folder/etc-upper,workdir=$folder/etc-work" overlay /etc

# The node's own folders, which can also be looked at from outside.
for own in /run/containerd /run/nri /run/knit /var/lib/containerd /var/lib/kubelet /var/lib/knit /var/lib/cni \
	/var/log/pods /var/log/containers /etc/cni /opt/cni /opt/containerd; do
	mkdir -p "$own" "$folder$own"
	mount --bind "$folder$own" "$own"
done
mkdir /run/netns
mount -t tmpfs tmpfs /run/netns

# A sysfs of this network namespace, so that /sys/class/net is the node's.
mount -t sysfs sysfs /sys
mount --rbind /run/aside/cgroup /sys/fs/cgroup
umount -R -l /run/aside/cgroup
mount -t bpf bpf /sys/fs/bpf
rmdir /run/aside/* /run/aside

# The kubelet sets these for the whole machine. It finds them set instead, and leaves the machine alone. A second,
# uncovered /proc stays around: the kernel asks for one before a pod with a user namespace may mount its own.
mkdir /run/proc
mount -t proc proc /run/proc
for sysctl in "$folder"/sysctl/*; do
	path=/proc/sys/$(basename "$sysctl" | tr . /)
	if [ -e "$path" ]; then
		mount --bind "$sysctl" "$path"
	fi
done

# Each life of a node is another boot.
cat /proc/sys/kernel/random/uuid > "$folder/boot_id"
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id

ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
mount --make-rshared /
: > "$folder/arranged"
exec sleep infinity
