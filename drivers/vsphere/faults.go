package main

import (
	"context"
	"crypto/x509"
	"errors"
	"reflect"

	"github.com/vmware/govmomi/fault"
	"github.com/vmware/govmomi/vim25/soap"
	"github.com/vmware/govmomi/vim25/types"

	"github.com/capcmi/cluster-api-provider-cmi/sdk/go/cmi"
)

// is says whether an error has a fault of a type, or of a type that extends it where Fault is an interface.
func is[Fault any](err error) bool {
	var target Fault
	_, found := fault.As(err, &target)
	return found
}

func hasExpired(err error) bool { return is[*types.NotAuthenticated](err) }

// isGone says whether an error means that a VM does not exist. The same fault also names other objects that are missing,
// such as a task or a datastore.
func isGone(err error, vm types.ManagedObjectReference) bool {
	var missing *types.ManagedObjectNotFound
	_, found := fault.As(err, &missing)
	return found && missing.Obj.Type == vm.Type && missing.Obj.Value == vm.Value
}

// explain gives a fault of vCenter its code. The action completes the sentence "vCenter could not …".
func explain(err error, action string) error {
	var known *cmi.Error
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, cmi.ErrGone):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case hasExpired(err):
		return cmi.Unavailable("vCenter ended the session twice, and could not %s", action).Because(err)
	case is[*types.NoPermission](err):
		return cmi.PermissionDenied("the user may not %s%s", action, privilege(err)).Because(err)
	case isExhausted(err):
		return cmi.Exhausted("vCenter has no room to %s: %s", action, reason(err)).Because(err)
	case isBusy(err):
		return cmi.Busy("vCenter could not %s, because another operation runs: %s", action, reason(err)).Because(err)
	case is[types.BaseHostCommunication](err), is[types.BaseHostConnectFault](err):
		return cmi.Unavailable("vCenter could not %s, because a host does not answer: %s", action, reason(err)).Because(err)
	case reason(err) != "":
		return cmi.Unknown("vCenter could not %s: %s", action, reason(err)).Because(err)
	default:
		return err // the kit knows network errors
	}
}

// begun explains an error after vCenter has accepted a request, which it carries out anyway. The code must not say that
// nothing was begun, as PERMISSION_DENIED does.
func begun(err error, action string) error {
	var known *cmi.Error
	text := reason(err)
	if text == "" && errors.As(err, &known) {
		text = known.Error()
	}
	if text == "" {
		return err // the kit knows network errors
	}
	return cmi.Unknown("vCenter could not %s: %s", action, text).Because(err)
}

// unconnected explains an error of a login.
func unconnected(ctx context.Context, err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case ctx.Err() != nil:
		return err
	case is[*types.InvalidLogin](err):
		return cmi.Unauthenticated("vCenter does not know the user or the password").Because(err)
	case errors.Is(err, errOtherCertificate):
		return cmi.Forbidden("vCenter has another certificate than the thumbprint in the Secret").Because(err)
	case soap.IsCertificateUntrusted(err), errors.As(err, &invalid):
		return cmi.Forbidden("vCenter's certificate is not trusted: put its CA into the key %s of the Secret, or its "+
			"SHA-256 thumbprint into %s", authorityKey, thumbprintKey).Because(err)
	}
	return explain(err, "log in")
}

func isExhausted(err error) bool {
	return is[types.BaseInsufficientResourcesFault](err) ||
		is[*types.NoDiskSpace](err) ||
		is[types.BaseNoCompatibleHost](err) ||
		is[*types.NoCompatibleDatastore](err) ||
		is[types.BaseNotEnoughLicenses](err)
}

func isBusy(err error) bool {
	return is[types.BaseTaskInProgress](err) ||
		is[types.BaseResourceInUse](err) ||
		is[*types.ConcurrentAccess](err) ||
		is[*types.FileLocked](err)
}

// reason returns vCenter's own words, or the type of a fault without words. It is empty for an error without a fault.
func reason(err error) string {
	var text string
	describe := func(found types.BaseMethodFault, localized string, _ []types.LocalizableMessage) bool {
		text = localized
		if text == "" {
			text = reflect.TypeOf(found).Elem().Name()
		}
		return true
	}
	if soap.IsSoapFault(err) {
		if text = soap.ToSoapFault(err).String; text != "" {
			return text
		}
	}
	var method types.BaseMethodFault
	if _, has := fault.As(err, &method); has {
		fault.In(err, describe)
	}
	return text
}

func privilege(err error) string {
	var denied *types.NoPermission
	if _, found := fault.As(err, &denied); found && denied.PrivilegeId != "" {
		return ": the privilege " + denied.PrivilegeId + " is missing"
	}
	return ""
}
