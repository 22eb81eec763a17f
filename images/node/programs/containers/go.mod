module capcmi.test/node-image/containers

go 1.26.0
