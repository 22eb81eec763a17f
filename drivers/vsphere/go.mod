module github.com/capcmi/cluster-api-provider-cmi/drivers/vsphere

go 1.25.0

require (
	github.com/capcmi/cluster-api-provider-cmi/sdk/go v0.0.0
	github.com/google/uuid v1.6.0
	github.com/vmware/govmomi v0.55.0
	google.golang.org/grpc v1.83.1
	sigs.k8s.io/yaml v1.6.0
)

require (
	github.com/google/jsonschema-go v0.4.3 // indirect
	github.com/santhosh-tekuri/jsonschema/v6 v6.0.3 // indirect
	go.yaml.in/yaml/v2 v2.4.2 // indirect
	golang.org/x/net v0.55.0 // indirect
	golang.org/x/sys v0.45.0 // indirect
	golang.org/x/text v0.38.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260526163538-3dc84a4a5aaa // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

// The kit of this repository.
replace github.com/capcmi/cluster-api-provider-cmi/sdk/go => ../../sdk/go
