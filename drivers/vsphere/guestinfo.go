package main

import (
	"encoding/base64"
	"encoding/json"

	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// Keys that cloud-init and Ignition read in the guest.
const (
	userDataKey = "guestinfo.userdata"
	metadataKey = "guestinfo.metadata"
	ignitionKey = "guestinfo.ignition.config.data"
	// The key of the encoding of a value.
	encodingSuffix = ".encoding"
	encodingBase64 = "base64"
)

// Formats of user data.
const (
	formatCloudConfig = "cloud-config"
	formatIgnition    = "ignition"
)

// providerID returns the ProviderID for a BIOS UUID, as the cloud provider for vSphere writes it.
func providerID(bios string) string { return "vsphere://" + bios }

// guestInfo returns the bootstrap data as keys of the extra configuration. It empties the keys of the other format, which
// a template made from a machine has.
func guestInfo(id cmi.Identity, boot cmi.Bootstrap) ([]types.BaseOptionValue, error) {
	switch boot.Format {
	case formatIgnition:
		return append(encoded(ignitionKey, boot.UserData), option(userDataKey, ""), option(metadataKey, "")), nil
	case formatCloudConfig, "":
		metadata, err := metadataFor(id.Name, biosID(id))
		if err != nil {
			return nil, err
		}
		data := append(encoded(userDataKey, boot.UserData), encoded(metadataKey, metadata)...)
		return append(data, option(ignitionKey, "")), nil
	default:
		return nil, cmi.Forbidden("the bootstrap data have the format %q; this driver knows %s and %s",
			boot.Format, formatCloudConfig, formatIgnition)
	}
}

func encoded(key string, value []byte) []types.BaseOptionValue {
	return []types.BaseOptionValue{
		option(key, base64.StdEncoding.EncodeToString(value)),
		option(key+encodingSuffix, encodingBase64),
	}
}

// metadataFor returns cloud-init's metadata. The template of the bootstrap data may use `ds.meta_data.provider_id`.
func metadataFor(name, bios string) ([]byte, error) {
	return json.Marshal(map[string]string{
		"instance-id": bios, "local-hostname": name, "hostname": name, "provider_id": providerID(bios),
	})
}
