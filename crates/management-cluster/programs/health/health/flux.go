package main

import (
	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func flux(object *unstructured.Unstructured) (health, error) {
	computed, err := status.Compute(object)
	if err != nil {
		return health{}, err
	}
	return health{Status: computed.Status.String(), Message: computed.Message}, nil
}
