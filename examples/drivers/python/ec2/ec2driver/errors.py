"""What EC2's refusals are in the codes of the driver contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore import exceptions as boto
from botocore.parsers import ResponseParserError

from .contract import Code, Failure

# EC2 appends a blob to some refusals that only an administrator can decode.
_ENCODED = re.compile(r"\s*Encoded authorization failure message: \S+")
_THROTTLED_SECONDS = 30.0

# The token of a create was used for another request, which EC2 may still be working on.
TOKEN_OF_OTHER_PARAMETERS = "IdempotentParameterMismatch"
# The token of a create was used for an instance that is terminated.
TOKEN_OF_A_TERMINATED_INSTANCE = "IdempotentInstanceTerminated"

# By EC2's code, or its part before the first dot (`InvalidAMIID` for `InvalidAMIID.NotFound`).
_CODES: dict[str, Code] = {
    reason: code
    for code, reasons in {
        Code.UNAUTHENTICATED: (
            "AuthFailure ExpiredToken IncompleteSignature InvalidAccessKeyId InvalidClientTokenId "
            "MissingAuthenticationToken RequestExpired SignatureDoesNotMatch UnrecognizedClientException"
        ),
        Code.PERMISSION_DENIED: (
            "AccessDenied AccessDeniedException Blocked OptInRequired PendingVerification UnauthorizedOperation"
        ),
        Code.RESOURCE_EXHAUSTED: (
            "InstanceLimitExceeded InsufficientCapacity InsufficientFreeAddressesInSubnet InsufficientHostCapacity "
            "InsufficientInstanceCapacity InsufficientVolumeCapacity MaxIOPSLimitExceeded "
            "NetworkInterfaceLimitExceeded PrivateIpAddressLimitExceeded ReservationCapacityExceeded "
            "ResourceCountExceeded ResourceLimitExceeded VcpuLimitExceeded VolumeLimitExceeded"
        ),
        Code.UNAVAILABLE: (
            "EC2ThrottledException InternalError InternalFailure RequestLimitExceeded RequestThrottled "
            "ServiceUnavailable Throttling ThrottlingException Unavailable"
        ),
        Code.FAILED_PRECONDITION: ("IncorrectInstanceState IncorrectState OperationNotPermitted UnsupportedOperation"),
        Code.INVALID_ARGUMENT: (
            "InvalidAMIID InvalidAvailabilityZone InvalidBlockDeviceMapping InvalidGroup InvalidGroupId "
            "InvalidInstanceType InvalidKeyPair InvalidNextToken InvalidPaginationToken InvalidParameter "
            "InvalidParameterCombination InvalidParameterValue "
            "InvalidSecurityGroupID InvalidSubnet InvalidSubnetID InvalidUserData MissingParameter "
            "TagLimitExceeded UnknownParameter Unsupported"
        ),
        Code.ABORTED: f"{TOKEN_OF_OTHER_PARAMETERS} {TOKEN_OF_A_TERMINATED_INSTANCE}",
        Code.NOT_FOUND: "InvalidInstanceID",
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


def reason_of(error: boto.ClientError) -> str:
    """EC2's own code."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def told(doing: str) -> Iterator[None]:
    """Turns what boto3 raises into a Failure that says what was being done."""
    try:
        yield
    except boto.ClientError as error:
        raise _refused(doing, error) from error
    except (boto.ParamValidationError, boto.ValidationError) as error:
        raise _failure(Code.INVALID_ARGUMENT, doing, str(error)) from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise _failure(Code.UNAUTHENTICATED, doing, str(error)) from error
    # The answer got lost on its way, or is not EC2's: whether EC2 has done it is not known.
    except (boto.HTTPClientError, boto.ConnectionError, ResponseParserError) as error:
        raise _failure(Code.UNAVAILABLE, doing, str(error)) from error
    except boto.BotoCoreError as error:
        raise _failure(Code.UNKNOWN, doing, str(error)) from error


def _refused(doing: str, error: boto.ClientError) -> Failure:
    reason = reason_of(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = _CODES.get(reason) or _CODES.get(reason.split(".")[0])
    if code is None:
        code = Code.UNAVAILABLE if status >= 500 else Code.UNKNOWN
    words = _ENCODED.sub("", str(error.response.get("Error", {}).get("Message", "")))
    failure = _failure(code, doing, f"{reason}: {words}")
    failure.reason = reason
    failure.elsewhere = reason in _ELSEWHERE
    if reason in _THROTTLED:
        failure.retry_after_seconds = _THROTTLED_SECONDS
    return failure


def _failure(code: Code, doing: str, words: str) -> Failure:
    return Failure(code, f"{doing}: {words}")
