"""EC2's refusals as errors of the kit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import cmi
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

# EC2 appends a blob to some refusals that only an administrator can decode.
_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")
_THROTTLED_SECONDS = 30.0

# The token of a create was used for another request, which EC2 may still be working on.
TOKEN_OF_OTHER_PARAMETERS = "IdempotentParameterMismatch"
# The token of a create was used for an instance that is terminated.
TOKEN_OF_A_TERMINATED_INSTANCE = "IdempotentInstanceTerminated"

# By EC2's code, or its part before the first dot (`InvalidAMIID` for `InvalidAMIID.NotFound`).
_ERRORS: dict[str, type[cmi.Error]] = {
    reason: kind
    for kind, reasons in {
        cmi.Unauthenticated: (
            "AuthFailure ExpiredToken IncompleteSignature InvalidAccessKeyId InvalidClientTokenId "
            "MissingAuthenticationToken RequestExpired SignatureDoesNotMatch UnrecognizedClientException"
        ),
        cmi.PermissionDenied: (
            "AccessDenied AccessDeniedException Blocked OptInRequired PendingVerification UnauthorizedOperation"
        ),
        cmi.Exhausted: (
            "InstanceLimitExceeded InsufficientCapacity InsufficientFreeAddressesInSubnet InsufficientHostCapacity "
            "InsufficientInstanceCapacity InsufficientVolumeCapacity MaxIOPSLimitExceeded "
            "NetworkInterfaceLimitExceeded PrivateIpAddressLimitExceeded ReservationCapacityExceeded "
            "ResourceCountExceeded ResourceLimitExceeded VcpuLimitExceeded VolumeLimitExceeded"
        ),
        cmi.Unavailable: (
            "EC2ThrottledException InternalError InternalFailure RequestLimitExceeded RequestThrottled "
            "ServiceUnavailable Throttling ThrottlingException Unavailable"
        ),
        cmi.Forbidden: ("IncorrectInstanceState IncorrectState OperationNotPermitted UnsupportedOperation"),
        cmi.BadRequest: (
            "InvalidAMIID InvalidAvailabilityZone InvalidBlockDeviceMapping InvalidGroup InvalidGroupId "
            "InvalidInstanceType InvalidKeyPair InvalidNextToken InvalidPaginationToken InvalidParameter "
            "InvalidParameterCombination InvalidParameterValue "
            "InvalidSecurityGroupID InvalidSubnet InvalidSubnetID InvalidUserData MissingParameter "
            "TagLimitExceeded UnknownParameter Unsupported"
        ),
        cmi.Busy: f"{TOKEN_OF_OTHER_PARAMETERS} {TOKEN_OF_A_TERMINATED_INSTANCE}",
    }.items()
    for reason in reasons.split()
}
# One zone's refusals.
_ELSEWHERE = frozenset(
    (
        "InsufficientCapacity",
        "InsufficientFreeAddressesInSubnet",
        "InsufficientHostCapacity",
        "InsufficientInstanceCapacity",
        "InsufficientVolumeCapacity",
        "Unsupported",
    )
)
_THROTTLED = frozenset(
    ("EC2ThrottledException", "RequestLimitExceeded", "RequestThrottled", "Throttling", "ThrottlingException")
)


# The instance of a request does not exist.
_GONE = "InvalidInstanceID"


def reason_of(error: Exception) -> str:
    """EC2's own code of a refusal; empty for other errors."""
    cause = error.__cause__ if isinstance(error, cmi.Error) else error
    return str(cause.response.get("Error", {}).get("Code", "")) if isinstance(cause, boto.ClientError) else ""


def is_elsewhere(error: cmi.Error) -> bool:
    """Whether another zone may do what this one could not."""
    return reason_of(error) in _ELSEWHERE


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turns an error of boto3 into one of the kit, which names the action."""
    try:
        yield
    except boto.ClientError as error:
        raise _refused(doing, error) from error
    except (boto.ParamValidationError, boto.ValidationError) as error:
        raise cmi.BadRequest(f"{doing}: {error}") from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise cmi.Unauthenticated(f"{doing}: {error}") from error
    # The answer was lost, or is not EC2's: EC2 may have carried out the request.
    except (boto.HTTPClientError, boto.ConnectionError, ResponseParserError) as error:
        raise cmi.Unavailable(f"{doing}: {error}") from error
    except boto.BotoCoreError as error:
        raise cmi.Unknown(f"{doing}: {error}") from error


def _refused(doing: str, error: boto.ClientError) -> Exception:
    reason = reason_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if reason.split(".")[0] == _GONE:
        return cmi.Gone(reason)
    kind = _ERRORS.get(reason) or _ERRORS.get(reason.split(".")[0])
    if kind is None:
        kind = cmi.Unavailable if status >= 500 else cmi.Unknown
    words = _ENCODED.sub("", str(error.response.get("Error", {}).get("Message", "")))
    wait = _THROTTLED_SECONDS if reason in _THROTTLED else 0
    return kind(f"{doing}: {reason}: {words}", retry_after=wait)
