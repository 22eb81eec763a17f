package mcmbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/gardener/machine-controller-manager/pkg/apis/machine/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

const (
	// Drivers show the name of the class in their logs only.
	className   = "capcmi"
	userDataKey = "userData"
	// Drivers refuse a Secret without user data also where they do not use it.
	noUserData = "# only a new machine has user data\n"
)

// class returns a MachineClass with a spec and these tags.
func (b *bridge) class(spec cmi.OpenSpec, tags map[string]string) (*v1alpha1.MachineClass, error) {
	encoded, err := json.Marshal(tags)
	if err != nil {
		return nil, fmt.Errorf("encoding the tags: %w", err)
	}
	tagged := maps.Clone(spec)
	if tagged == nil {
		tagged = cmi.OpenSpec{}
	}
	tagged["tags"] = encoded
	raw, err := json.Marshal(tagged)
	if err != nil {
		return nil, fmt.Errorf("encoding the provider spec: %w", err)
	}
	return &v1alpha1.MachineClass{
		ObjectMeta:   metav1.ObjectMeta{Name: className},
		Provider:     b.provider,
		ProviderSpec: runtime.RawExtension{Raw: raw},
	}, nil
}

// secret returns the credentials of a call, with user data.
func secret(ctx context.Context, userData []byte) *corev1.Secret {
	if len(userData) == 0 {
		userData = []byte(noUserData)
	}
	data := map[string][]byte{userDataKey: userData}
	for key, value := range cmi.SecretsOf(ctx) {
		data[key] = value
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: className}, Data: data}
}

// machine returns the Machine of a request. The id of its VM may be unknown.
func machine(ctx context.Context, id cmi.Identity, providerID string) *v1alpha1.Machine {
	return &v1alpha1.Machine{
		ObjectMeta: metav1.ObjectMeta{Name: id.Name},
		Spec: v1alpha1.MachineSpec{
			Class:      v1alpha1.ClassSpec{Kind: "MachineClass", Name: className},
			ProviderID: providerID,
		},
		Status: v1alpha1.MachineStatus{LastKnownState: string(cmi.StateOf(ctx))},
	}
}

var addressTypes = map[corev1.NodeAddressType]cmi.AddressType{
	corev1.NodeHostName:    cmi.HostName,
	corev1.NodeExternalIP:  cmi.ExternalIP,
	corev1.NodeInternalIP:  cmi.InternalIP,
	corev1.NodeExternalDNS: cmi.ExternalDNS,
	corev1.NodeInternalDNS: cmi.InternalDNS,
}

func addresses(of []corev1.NodeAddress) []cmi.Address {
	var all []cmi.Address
	for _, address := range of {
		if kind, known := addressTypes[address.Type]; known {
			all = append(all, cmi.Address{Type: kind, Text: address.Address})
		}
	}
	return all
}
