// Command health reads Kubernetes objects as a JSON array and writes the health of each, as a GitOps tool sees it.
//
//	health flux            as Flux with `wait: true`, by its library
//	health argocd FILE     as Argo CD with the health check in FILE, by its interpreter of Lua
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// health is the health of one object.
type health struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	check, err := checkFor(arguments)
	if err != nil {
		return err
	}
	var texts []json.RawMessage
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		return fmt.Errorf("reading the objects: %w", err)
	}
	all := make([]health, 0, len(texts))
	for _, text := range texts {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(text); err != nil {
			return fmt.Errorf("reading an object: %w", err)
		}
		one, err := check(object)
		if err != nil {
			return fmt.Errorf("checking %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		all = append(all, one)
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

type check func(*unstructured.Unstructured) (health, error)

func checkFor(arguments []string) (check, error) {
	switch {
	case len(arguments) == 1 && arguments[0] == "flux":
		return flux, nil
	case len(arguments) == 2 && arguments[0] == "argocd":
		script, err := os.ReadFile(arguments[1])
		if err != nil {
			return nil, fmt.Errorf("reading the health check: %w", err)
		}
		return argocd(string(script)), nil
	default:
		return nil, errors.New("usage: health flux, or health argocd FILE")
	}
}
