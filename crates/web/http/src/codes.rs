//! The errors of the server itself, which occur before or around a handler.

use crate::codec::FramingError;
use batzen_protocol::ErrorCode;

/// An error of the server: an error code, and the status if it differs from the code's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// The body did not arrive in time.
    Timeout,
    /// Known path, wrong method.
    MethodInvalid,
    /// No such endpoint.
    EndpointUnknown,
    /// The request is not well-formed HTTP, or its body does not inflate or is not JSON.
    Malformed,
    /// A required query parameter is missing.
    ParameterMissing,
    /// A query parameter does not parse.
    ParameterMalformed,
    /// The path is too long.
    UriTooLong,
    /// The body is too large.
    UploadExceedsLimit,
    /// The header is too large.
    HeaderTooLarge,
    /// The body has an encoding other than deflate.
    EncodingUnsupported,
    /// A request without a credential whose body is not JSON.
    MediaTypeUnsupported,
    /// A page of another site sent the request.
    CrossSite,
    /// The request is for a name that is not the service's.
    Misdirected,
    /// A handler panicked.
    InternalInvariant,
    /// Too many requests or connections.
    Overloaded,
    /// The path has the wrong number of segments.
    WrongNumberOfSegments,
    /// The operation named in the path is unknown.
    OperationUnknown,
}

impl From<FramingError> for FrameError {
    fn from(error: FramingError) -> Self {
        match error {
            FramingError::Malformed | FramingError::NoLength => Self::Malformed,
            FramingError::HeadTooLarge => Self::HeaderTooLarge,
            FramingError::BodyTooLarge => Self::UploadExceedsLimit,
        }
    }
}

impl FrameError {
    /// The code of the response. If the registry has none for the case, the nearest one; clients then look at
    /// the status.
    pub(crate) const fn code(self) -> ErrorCode {
        match self {
            Self::MethodInvalid => ErrorCode::GENERIC_METHOD_INVALID,
            Self::EndpointUnknown => ErrorCode::GENERIC_ENDPOINT_UNKNOWN,
            Self::Malformed | Self::Timeout | Self::EncodingUnsupported | Self::MediaTypeUnsupported => {
                ErrorCode::GENERIC_JSON_INVALID
            }
            Self::CrossSite | Self::Misdirected => ErrorCode::GENERIC_FORBIDDEN,
            Self::ParameterMissing => ErrorCode::GENERIC_PARAMETER_MISSING,
            Self::ParameterMalformed => ErrorCode::GENERIC_PARAMETER_MALFORMED,
            Self::UriTooLong => ErrorCode::GENERIC_URI_TOO_LONG,
            Self::UploadExceedsLimit | Self::HeaderTooLarge => ErrorCode::GENERIC_UPLOAD_EXCEEDS_LIMIT,
            Self::InternalInvariant => ErrorCode::GENERIC_INTERNAL_INVARIANT_FAILURE,
            Self::Overloaded => ErrorCode::GENERIC_ALLOCATION_FAILURE,
            Self::WrongNumberOfSegments => ErrorCode::EXCHANGE_GENERIC_WRONG_NUMBER_OF_SEGMENTS,
            Self::OperationUnknown => ErrorCode::EXCHANGE_GENERIC_OPERATION_UNKNOWN,
        }
    }

    /// The status of the response.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Timeout => 408,
            Self::EncodingUnsupported | Self::MediaTypeUnsupported => 415,
            Self::Misdirected => 421,
            Self::HeaderTooLarge => 431,
            Self::Overloaded => 503,
            _ => self.code().http_status(),
        }
    }
}
