//! What goes over the wire and what is signed: amounts, times, payto URIs, JSON bodies, signature payloads, error codes.
