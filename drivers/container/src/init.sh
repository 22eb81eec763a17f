# The first program of a machine: what the runtime's configuration cannot say, then the image's init.
mount --bind /proc/sys /proc/sys
# The kubelet sets these for the whole computer: here it finds its values in files, and the computer keeps its own.
mkdir -p /run/capcmi
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 \
    kernel/keys/root_maxbytes=25000000; do
    name=${setting%=*}
    [ -e "/proc/sys/$name" ] || continue
    file=/run/capcmi/$(echo "$name" | tr / _)
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done
# The machine may change its own network, and nothing else of the kernel.
mount --bind /proc/sys/net /proc/sys/net
mount -o remount,bind,ro /proc/sys
# The kubelet shares mounts with containers.
mount --make-rshared /
exec /sbin/init
