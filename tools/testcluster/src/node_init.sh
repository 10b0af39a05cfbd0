# The first process of a node of a test cluster: runs in new mount, UTS and network namespaces, sets them up and then holds
# them open. Every node has the standard paths, so that one ordinary DaemonSet fits all; everything that a node writes is
# in its own directory, and nothing is created in the host's file systems.
#
# $1 the cluster's state directory, $2 the directory of the tools, $3 the node's directory, $4 the node's name
set -eu
state=$1 tools=$2 folder=$3 name=$4

echo "$name" > /proc/sys/kernel/hostname

# Directories that must stay visible are moved aside before a tmpfs covers their parents.
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

# The node's own directories, which the host can inspect too.
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

# The kubelet sets these sysctls for the whole machine unless they have the expected values; so it reads files that do. A
# second, uncovered /proc is needed before a pod with a user namespace may mount its own.
mkdir /run/proc
mount -t proc proc /run/proc
for sysctl in "$folder"/sysctl/*; do
	path=/proc/sys/$(basename "$sysctl" | tr . /)
	if [ -e "$path" ]; then
		mount --bind "$sysctl" "$path"
	fi
done

# Each start of a node is another boot.
cat /proc/sys/kernel/random/uuid > "$folder/boot_id"
mount --bind "$folder/boot_id" /proc/sys/kernel/random/boot_id

ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
mount --make-rshared /
: > "$folder/ready"
exec sleep infinity
