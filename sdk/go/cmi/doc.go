// Package cmi makes a driver of a VM platform from a few methods.
//
// A driver serves the Common Machine Interface over gRPC. A Cluster API provider calls it to create, find and delete the
// VMs of Kubernetes machines. An author implements [Backend] and calls [Main]:
//
//	type spec struct {
//		Size string `json:"size" cmi:"enum=small|large"`
//	}
//
//	func main() {
//		cmi.Main(cmi.Info{Name: "acme.example.com", Version: "v0.1.0"}, &backend{})
//	}
//
// The package keeps the rules of the contract around these methods:
//
//   - It decodes the provider spec strictly, refuses bad requests with the path of the field, and derives a JSON Schema.
//   - It finds the VM of a machine before it creates one, and compares the owner's tags. No call touches the VM of another
//     cluster or of another machine object.
//   - It runs one changing call at a time for each machine.
//   - It maps errors to codes, and removes secrets from messages and logs.
//   - It serves health, reflection, TLS and Unix sockets, and shuts down gracefully.
//
// Optional interfaces such as [Stopper] and [Updater] declare further calls: a back end that implements one offers the
// call. Package cmitest runs the conformance suite of the interface from go test.
package cmi
