package mcmbridge

import (
	"errors"
	"fmt"

	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/codes"
	"github.com/gardener/machine-controller-manager/pkg/util/provider/machinecodes/status"
	grpccodes "google.golang.org/grpc/codes"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// statusOf returns the code and the message of a driver's error. MCM reads them from the text: an error may be wrapped
// without its type.
func statusOf(err error) (*status.Status, bool) {
	var typed *status.Status
	if errors.As(err, &typed) {
		return typed, true
	}
	return status.FromError(err)
}

// codeOf returns OK without an error, and UNKNOWN for an error without a code.
func codeOf(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	found, _ := statusOf(err)
	if found.Code() == codes.OK {
		return codes.Unknown
	}
	return found.Code()
}

func messageOf(err error) string {
	found, _ := statusOf(err)
	return found.Message()
}

// failure returns the error of a call to the driver with its code. The text of an error without a code goes to the log.
func failure(call string, err error) error {
	found, hasCode := statusOf(err)
	if !hasCode {
		return fmt.Errorf("%s: %w", call, err)
	}
	code := grpccodes.Code(found.Code())
	if found.Code() > codes.Unauthenticated {
		code = grpccodes.Unknown
	}
	return cmi.WithCode(code, "%s: %s", call, found.Message()).Because(found.Cause())
}

// withState adds the state of a response that came with an error.
func withState(err error, state string) error {
	var known *cmi.Error
	if state != "" && errors.As(err, &known) {
		return known.WithState([]byte(state))
	}
	return err
}
