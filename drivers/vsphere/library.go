package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"

	"github.com/vmware/govmomi/vapi/library"
	"github.com/vmware/govmomi/vapi/rest"
	ovf "github.com/vmware/govmomi/vapi/vcenter"
	"github.com/vmware/govmomi/vim25"
	"github.com/vmware/govmomi/vim25/types"
	"github.com/vmware/govmomi/vim25/xml"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// deploy makes the VM of an order from an OVF item of a content library. The request holds the record, too.
func (v *vcenter) deploy(ctx context.Context, order order, to target) (made types.ManagedObjectReference, err error) {
	if to.datastore == nil {
		return made, cmi.Invalid("/datastoreCluster", "Storage DRS does not place content library items: set /datastore")
	}
	config, err := encodedConfig(order.config)
	if err != nil {
		return made, err
	}
	err = v.withREST(ctx, func(client *rest.Client) error {
		item, err := libraryItem(ctx, client, to.LibraryItem)
		if err != nil {
			return err
		}
		deployer := ovf.NewManager(client)
		destination := ovf.Target{ResourcePoolID: to.pool.Value, FolderID: to.folder.Value}
		offer, err := deployer.FilterLibraryItem(ctx, item, ovf.FilterRequest{Target: destination})
		if err != nil {
			return err
		}
		ref, err := deployer.DeployLibraryItem(ctx, item, ovf.Deploy{
			DeploymentSpec: ovf.DeploymentSpec{
				Name:                order.name,
				AcceptAllEULA:       true,
				DefaultDatastoreID:  to.datastore.Value,
				StorageProvisioning: "thin",
				NetworkMappings:     mappings(offer.Networks, to.networks),
				VmConfigSpec:        &ovf.VmConfigSpec{Provider: "XML", XML: config},
			},
			Target: destination,
		})
		if err != nil {
			return undeployed(err, order.name)
		}
		made = *ref
		return nil
	})
	return made, err
}

// withREST runs a function in a session of the REST API, which ends with it.
func (v *vcenter) withREST(ctx context.Context, call func(*rest.Client) error) error {
	return v.do(ctx, func(ctx context.Context, vim *vim25.Client) error {
		client := rest.NewClient(vim)
		client.CheckRedirect = refuseRedirect
		if err := client.Login(ctx, v.credentials.user()); err != nil {
			return restFailure(err)
		}
		err := restFailure(call(client))
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutWithin)
		defer cancel()
		_ = client.Logout(ending) // vCenter ends an idle session
		return err
	})
}

// restFailure gives the status of the REST API its code.
func restFailure(err error) error {
	switch {
	case rest.IsStatusError(err, http.StatusUnauthorized):
		return cmi.Unauthenticated("the content library does not accept the user or the password").Because(err)
	case rest.IsStatusError(err, http.StatusForbidden):
		return cmi.PermissionDenied("the user may not use the content library").Because(err)
	case rest.IsStatusError(err, http.StatusServiceUnavailable):
		return cmi.Unavailable("the content library is not available").Because(err)
	}
	return err
}

// libraryItem returns the id of an item such as `images/debian-12`.
func libraryItem(ctx context.Context, client *rest.Client, path string) (string, error) {
	const field = "/libraryItem"
	name, item, ok := strings.Cut(path, "/")
	if !ok {
		return "", cmi.Invalid(field, "must be LIBRARY/ITEM, not %s", path)
	}
	manager := library.NewManager(client)
	libraries, err := manager.FindLibrary(ctx, library.Find{Name: name})
	if err != nil {
		return "", err
	}
	var items []string
	for _, id := range libraries {
		found, err := manager.FindLibraryItems(ctx, library.FindItem{LibraryID: id, Name: item})
		if err != nil {
			return "", err
		}
		items = append(items, found...)
	}
	if len(items) != 1 {
		return "", cmi.Invalid(field, "vCenter has %d items %s; it must be one", len(items), path)
	}
	found, err := manager.GetLibraryItem(ctx, items[0])
	if err != nil {
		return "", err
	}
	if found.Type != library.ItemTypeOVF {
		return "", cmi.Invalid(field, "%s has the type %s and must be ovf; for a vm-template item, set its VM as /template",
			path, found.Type)
	}
	return items[0], nil
}

// mappings connects the networks of an OVF with the networks of the spec, in their order. The last network takes the rest.
func mappings(names []string, networks []network) []ovf.NetworkMapping {
	if len(networks) == 0 {
		return nil
	}
	made := make([]ovf.NetworkMapping, len(names))
	for i, name := range names {
		made[i] = ovf.NetworkMapping{Key: name, Value: networks[min(i, len(networks)-1)].ref.Value}
	}
	return made
}

func encodedConfig(config types.VirtualMachineConfigSpec) (string, error) {
	var text bytes.Buffer
	start := xml.StartElement{
		Name: xml.Name{Local: "obj"},
		Attr: []xml.Attr{
			{Name: xml.Name{Local: "xmlns:" + vim25.Namespace}, Value: "urn:" + vim25.Namespace},
			{Name: xml.Name{Local: "xmlns:xsi"}, Value: "http://www.w3.org/2001/XMLSchema-instance"},
			{Name: xml.Name{Local: "xsi:type"}, Value: vim25.Namespace + ":VirtualMachineConfigSpec"},
		},
	}
	encoder := xml.NewEncoder(&text)
	if err := encoder.EncodeElement(config, start); err != nil {
		return "", cmi.Internal("cannot encode the configuration of the VM").Because(err)
	}
	if err := encoder.Flush(); err != nil {
		return "", cmi.Internal("cannot encode the configuration of the VM").Because(err)
	}
	return base64.StdEncoding.EncodeToString(text.Bytes()), nil
}

// undeployed explains why vCenter did not deploy an item. It has words, and no fault with a type.
func undeployed(err error, name string) error {
	var refused *ovf.DeploymentError
	if !errors.As(err, &refused) {
		return err
	}
	text := strings.ToLower(refused.Error())
	for _, full := range []string{"insufficient", "not enough", "no space", "disk space"} {
		if strings.Contains(text, full) {
			return cmi.Exhausted("vCenter has no room for the VM %s: %s", name, refused.Error()).Because(err)
		}
	}
	return cmi.Unknown("vCenter could not deploy the VM %s: %s", name, refused.Error()).Because(err)
}
