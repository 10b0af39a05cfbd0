#!/bin/busybox sh
# The guest's first process. It mounts what a program expects, runs /knit/command and reports how it ended.
#
# Port 1 carries the program's standard output, port 2 its standard error, port 3 reports in lines:
# "up <seconds since boot>", then "exit <code>". After the last byte of a stream comes /knit/end, so that the other
# side knows that nothing is missing. The console is for the kernel, and for a shell when one was asked for.
#
# busybox runs its own applets here, whatever else is in PATH.

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /dev/net
# As on any machine, the file is there before its module: opening it loads that.
mknod /dev/net/tun c 10 200
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t bpf bpf /sys/fs/bpf
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr
chmod 1777 /tmp /dev/shm
mkdir -p /run/netns /run/lock
hostname guest
ip link set lo up

while read -r module; do
    insmod "$module"
done </knit/modules

if [ -e /knit/shell ]; then
    setsid cttyhack sh /knit/shell
    poweroff -f
fi

# A port appears a moment after its driver, and its file a moment before it can be opened (ENXIO until then). A failed
# redirection would end this shell, and the kernel with it, so that a subshell tries first.
for port in /dev/vport0p1 /dev/vport0p2 /dev/vport0p3; do
    tries=0
    until [ -c $port ] && (: >$port) 2>/dev/null; do
        tries=$((tries + 1))
        if [ $tries -gt 1000 ]; then
            echo "knit: $port, a way out for the program's output, cannot be opened"
            poweroff -f
        fi
        usleep 10000
    done
done

# A port can be open only once, and a program may open /dev/stdout: so it gets pipes.
mkfifo /knit/out /knit/err
relay() {
    { cat "$1"; cat /knit/end; } >"$2"
}
relay /knit/out /dev/vport0p1 &
relay /knit/err /dev/vport0p2 &

exec 3>/dev/vport0p3
read -r uptime rest </proc/uptime
echo "up $uptime" >&3
sh /knit/command </dev/null >/knit/out 2>/knit/err 3>&-
echo "exit $?" >&3

# The other side switches this machine off. When it is gone, nobody else will.
sleep 10
poweroff -f
