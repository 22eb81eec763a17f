package cmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc/codes"
)

// ErrStarting is the answer of a [Prober] that is healthy and not ready yet.
var ErrStarting = errors.New("the driver is starting")

// ErrGone is the answer to a call about a VM that no longer exists. DeleteMachine then answers OK, and other calls
// answer NOT_FOUND. Return it only when the platform confirmed it.
var ErrGone = errors.New("the VM no longer exists")

// Error is an error with a code and a message for the operator. Its constructors are the functions below.
type Error struct {
	code          codes.Code
	message       string
	uninitialized bool
	nothingBegun  bool
	retryAfter    time.Duration
	state         []byte
	vm            *VM
	cause         error
}

func newError(code codes.Code, format string, arguments []any) *Error {
	return &Error{code: code, message: fmt.Sprintf(format, arguments...)}
}

// Error returns the code, the message and the cause.
func (e *Error) Error() string {
	text := fmt.Sprintf("%s: %s", e.code, e.message)
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Because adds a cause. The driver's log shows it, and the answer does not: it may contain URLs and headers.
func (e *Error) Because(cause error) *Error {
	e.cause = cause
	return e
}

// RetryAfter asks the caller to wait before the next attempt.
func (e *Error) RetryAfter(wait time.Duration) *Error {
	e.retryAfter = wait
	return e
}

// NothingBegun promises that no VM and no restart will result from the call.
func (e *Error) NothingBegun() *Error {
	e.nothingBegun = true
	return e
}

// WithState returns a state to the next call about the machine; see [StateOf].
func (e *Error) WithState(state []byte) *Error {
	e.state = state
	return e
}

// Invalid refuses a field of the provider spec by its JSON pointer, such as `/size`. Code INVALID_ARGUMENT.
func Invalid(pointer, format string, arguments ...any) *Error {
	return newError(codes.InvalidArgument, "ProviderSpec "+pointer+": "+format, arguments)
}

// OutOfRange refuses a size that does not exist: CPUs, memory or disk. Code OUT_OF_RANGE.
func OutOfRange(pointer, format string, arguments ...any) *Error {
	return newError(codes.OutOfRange, "ProviderSpec "+pointer+": "+format, arguments)
}

// Exhausted means that a quota or a pool is used up, and that nothing was made. Code RESOURCE_EXHAUSTED.
func Exhausted(format string, arguments ...any) *Error {
	return newError(codes.ResourceExhausted, format, arguments)
}

// Taken means that the platform refused a name or an id that another VM has. Code ALREADY_EXISTS.
func Taken(format string, arguments ...any) *Error {
	return newError(codes.AlreadyExists, format, arguments)
}

// Busy means that an operation on the VM is running. The caller tries again. Code ABORTED.
func Busy(format string, arguments ...any) *Error {
	return newError(codes.Aborted, format, arguments)
}

// Forbidden means that the state of the VM forbids the call until an operator acts. Code FAILED_PRECONDITION.
func Forbidden(format string, arguments ...any) *Error {
	return newError(codes.FailedPrecondition, format, arguments)
}

// Uninitialized means that a step of Initialize failed. The caller tries again.
func Uninitialized(format string, arguments ...any) *Error {
	e := newError(codes.FailedPrecondition, format, arguments)
	e.uninitialized = true
	return e
}

// Unavailable means that the platform cannot be reached. Code UNAVAILABLE.
func Unavailable(format string, arguments ...any) *Error {
	return newError(codes.Unavailable, format, arguments)
}

// Unauthenticated means that credentials are missing or unknown. Code UNAUTHENTICATED.
func Unauthenticated(format string, arguments ...any) *Error {
	return newError(codes.Unauthenticated, format, arguments)
}

// PermissionDenied means that the credentials are known and do not allow the call. Code PERMISSION_DENIED.
func PermissionDenied(format string, arguments ...any) *Error {
	return newError(codes.PermissionDenied, format, arguments)
}

// Internal means that an invariant of the platform is broken and that an operator must look. Code INTERNAL.
func Internal(format string, arguments ...any) *Error {
	return newError(codes.Internal, format, arguments)
}

// Unknown means that the cause is unknown. Code UNKNOWN.
func Unknown(format string, arguments ...any) *Error {
	return newError(codes.Unknown, format, arguments)
}

// WithCode is an error with a code of gRPC, for back ends whose own errors have codes. OK and NOT_FOUND become UNKNOWN:
// only [ErrGone] says that a VM does not exist.
func WithCode(code codes.Code, format string, arguments ...any) *Error {
	if code == codes.OK || code == codes.NotFound {
		code = codes.Unknown
	}
	return newError(code, format, arguments)
}

func notFound(id Identity) *Error {
	return newError(codes.NotFound, "no VM of %s exists", []any{id})
}

// coded returns the error with a code. Only errors of this package keep theirs: the status of another gRPC service
// may be NOT_FOUND for other reasons. The text of a foreign error may hold secrets, so the answer lacks it.
func coded(ctx context.Context, err error) *Error {
	var known *Error
	var unreachable *net.OpError
	var unresolved *net.DNSError
	var request *url.Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return newError(codes.Canceled, "the caller has left", nil).Because(err)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return newError(codes.DeadlineExceeded, "the back end did not answer in time", nil).Because(err)
	case errors.As(err, &unreachable), errors.As(err, &unresolved), errors.As(err, &request):
		return Unavailable("the back end cannot be reached").Because(err)
	}
	return Unknown("the back end failed with an error of type %T; the driver's log shows it", root(err)).Because(err)
}

func root(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
