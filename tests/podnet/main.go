// podnet is the Pod network of the tests, for Nodes in one layer-2 network. On its Node it configures Debian's CNI plugins
// for the Node's podCIDR, and routes the podCIDR of every other Node to the address of that Node.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	configuration = "/etc/cni/net.d/10-podnet.conflist"
	plugins       = `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`
)

func main() {
	if err := run(os.Getenv("NODE_NAME"), os.Getenv("KUBELET_KUBECONFIG")); err != nil {
		log.Fatal(err)
	}
}

// run configures the network of a Node until this process is asked to end.
func run(self, kubelet string) error {
	client, err := client(kubelet)
	if err != nil {
		return err
	}
	ended, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	// A resync repeats what has failed.
	factory := informers.NewSharedInformerFactory(client, 10*time.Second)
	configure := func(object any) {
		if node, ok := object.(*corev1.Node); ok {
			if err := configure(node, self); err != nil {
				log.Printf("node %s: %v", node.Name, err)
			}
		}
	}
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    configure,
		UpdateFunc: func(_, object any) { configure(object) },
		DeleteFunc: remove,
	}); err != nil {
		return err
	}
	factory.Start(ended.Done())
	<-ended.Done()
	return nil
}

// client has the credentials of the Pod and the server of the kubelet: Services need a network first.
func client(kubelet string) (kubernetes.Interface, error) {
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, err
	}
	kubeconfig, err := clientcmd.LoadFromFile(kubelet)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", kubelet, err)
	}
	current, ok := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if !ok {
		return nil, fmt.Errorf("%s has no context %q", kubelet, kubeconfig.CurrentContext)
	}
	cluster, ok := kubeconfig.Clusters[current.Cluster]
	if !ok {
		return nil, fmt.Errorf("%s has no cluster %q", kubelet, current.Cluster)
	}
	config.Host = cluster.Server
	return kubernetes.NewForConfig(config)
}

func configure(node *corev1.Node, self string) error {
	if node.Spec.PodCIDR == "" {
		return nil
	}
	if node.Name == self {
		return write(fmt.Sprintf(plugins, node.Spec.PodCIDR))
	}
	route, err := route(node)
	if err != nil {
		return err
	}
	return netlink.RouteReplace(route)
}

// write replaces the configuration in one step.
func write(text string) error {
	if old, err := os.ReadFile(configuration); err == nil && string(old) == text {
		return nil
	}
	part := filepath.Join(filepath.Dir(configuration), ".podnet")
	if err := os.WriteFile(part, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(part, configuration)
}

func route(node *corev1.Node) (*netlink.Route, error) {
	_, subnet, err := net.ParseCIDR(node.Spec.PodCIDR)
	if err != nil {
		return nil, err
	}
	for _, address := range node.Status.Addresses {
		if gateway := net.ParseIP(address.Address); address.Type == corev1.NodeInternalIP && gateway != nil {
			return &netlink.Route{Dst: subnet, Gw: gateway}, nil
		}
	}
	return nil, errors.New("it has no InternalIP")
}

// remove deletes the route to a Node. The next Node may get the same podCIDR.
func remove(object any) {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = unknown.Obj
	}
	node, ok := object.(*corev1.Node)
	if !ok {
		return
	}
	route, err := route(node)
	if err == nil {
		err = netlink.RouteDel(route)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		log.Printf("node %s: removing its route: %v", node.Name, err)
	}
}
