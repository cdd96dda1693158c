//! What an error answer needs to know about an error code.

use std::borrow::Cow;

/// A code that can be answered: number, fixed English hint, and the HTTP status that goes with it.
pub trait WireCode {
    /// The number in member `code`.
    fn number(&self) -> u32;
    /// The fixed text in member `hint`.
    fn hint(&self) -> Cow<'static, str>;
    /// The HTTP status that the registry gives for the code.
    fn http_status(&self) -> u16;
}

/// The errors that the frame itself answers, before or around a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// 408: the body did not arrive in time.
    Timeout,
    /// 405: known path, wrong method.
    MethodInvalid,
    /// 404: no such endpoint.
    EndpointUnknown,
    /// 400: the request is not well-formed (body that does not inflate, ill-formed HTTP).
    JsonInvalid,
    /// 400: a required query parameter is missing.
    ParameterMissing,
    /// 400: a query parameter does not parse.
    ParameterMalformed,
    /// 414: the path is too long.
    UriTooLong,
    /// 413: the body is too large.
    UploadExceedsLimit,
    /// 431: the header is too large. Code 32, as there is none of its own.
    HeaderTooLarge,
    /// 415: a body encoding other than deflate. Code 22, as there is none of its own.
    EncodingUnsupported,
    /// 500: a handler failed in a way that it should not have.
    InternalInvariant,
    /// 503: too many requests or connections at once. Code 71 (allocation failure), the nearest there is.
    Overloaded,
    /// 404: the path has the wrong number of segments.
    WrongNumberOfSegments,
    /// 404: the operation named in the path is unknown.
    OperationUnknown,
}

impl FrameError {
    const fn row(self) -> (u32, u16, &'static str) {
        match self {
            Self::Timeout => (11, 408, "The request did not arrive in time."),
            Self::MethodInvalid => (20, 405, "The HTTP method used is invalid for this endpoint."),
            Self::EndpointUnknown => {
                (21, 404, "There is no endpoint defined for the URL provided by the client.")
            }
            Self::JsonInvalid => {
                (22, 400, "The JSON in the client's request was malformed (generic parse error).")
            }
            Self::ParameterMissing => (25, 400, "A required parameter in the request is missing."),
            Self::ParameterMalformed => (26, 400, "A parameter in the request was malformed."),
            Self::UriTooLong => (31, 414, "The URI is too long for this server."),
            Self::UploadExceedsLimit => {
                (32, 413, "The body in the request is larger than this server accepts.")
            }
            Self::HeaderTooLarge => {
                (32, 431, "The header of the request is larger than this server accepts.")
            }
            Self::EncodingUnsupported => {
                (22, 415, "The encoding of the body is not supported by this server.")
            }
            Self::InternalInvariant => (60, 500, "An internal invariant failed."),
            Self::Overloaded => (71, 503, "The server is busy. Try again later."),
            Self::WrongNumberOfSegments => {
                (1002, 404, "The number of segments in the path is wrong for the endpoint.")
            }
            Self::OperationUnknown => {
                (1001, 404, "The operation specified in the URL is unknown to this server.")
            }
        }
    }
}

impl WireCode for FrameError {
    fn number(&self) -> u32 {
        self.row().0
    }
    fn hint(&self) -> Cow<'static, str> {
        Cow::Borrowed(self.row().2)
    }
    fn http_status(&self) -> u16 {
        self.row().1
    }
}
