#!/bin/busybox sh
# The guest's init process: mounts the usual file systems, runs /knit/command and reports its exit code.
#
# Port 1 carries the program's standard output, port 2 its standard error, port 3 reports in lines:
# "up <seconds since boot>", then "exit <code>". /knit/end follows the last byte of a stream, so that the host can tell that
# it is complete. The console is for the kernel, or for an interactive shell.
#
# busybox runs its own applets here, whatever else is in PATH.

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm /dev/net
# The device node exists before its module: opening it loads the module.
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

# A port appears a moment after its driver, and its device node a moment before it can be opened (ENXIO until then). A failed
# redirection would end this shell, and the kernel with it, so a subshell tries first.
for port in /dev/vport0p1 /dev/vport0p2 /dev/vport0p3; do
    tries=0
    until [ -c $port ] && (: >$port) 2>/dev/null; do
        tries=$((tries + 1))
        if [ $tries -gt 1000 ]; then
            echo "knit: cannot open $port for the program's output"
            poweroff -f
        fi
        usleep 10000
    done
done

# A port can be open only once, but a program may open /dev/stdout: so it gets pipes.
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

# The host powers this machine off, unless it is gone.
sleep 10
poweroff -f
