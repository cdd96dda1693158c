//! Many requests at a time over one connection, between programs of ours.
//!
//! HTTP/1.1 answers one request after the other, so a client with hundreds of requests under way needs hundreds of connections,
//! and each request costs both sides its own reads, writes and wake-ups of the kernel: more than the request itself. Here the
//! client asks for another protocol on a connection (`OPTIONS *` with `Upgrade: batzen-concurrent`, RFC 9110, 7.8): then
//! requests follow each other without waiting, the server works on all of them at once, and the answers come in the order of
//! the requests. One read brings many requests, one write takes many answers.
//!
//! Messages keep the form of HTTP/1.1, but of it only what is needed: `POST`, bodies with `Content-Length`; whatever
//! else comes ends the connection. (Answers to a `GET` may be large or come late, and those behind it would be kept in memory
//! for as long.) Either side may close it at any time; what is unanswered then may have had its effect or not, so clients send
//! what they may repeat. That goes for half of it as well: who ends his own side counts as gone, as with hyper, since nothing
//! else tells whether somebody is there for whom it is worth to go on. Who does not know the protocol (other servers, proxies,
//! for which the header is none of their business) answers as ever, and is asked in the ordinary way. Only services that their
//! own programs ask for many things at once offer it ([`crate::ServerOptions::concurrent`]); everybody else is served by hyper.
//! A connection of this kind brings much work at once, so a service asks for the same authentication before it agrees as for
//! the requests that follow ([`crate::Handler::admit_concurrent`]); the client sends its credentials with both.
//!
//! | module | what |
//! |---|---|
//! | `wire` | messages in bytes: pure functions |
//! | `server` | a connection's requests and answers, within limits |
//! | `client` | a few connections to one server, and who waits on them |
//! | `fuzz` | both sides with somebody hostile at the other end |

pub(crate) mod client;
pub(crate) mod fuzz;
pub(crate) mod server;
mod wire;

pub(crate) use wire::WholeRequest;

/// The protocol's name in `Upgrade`.
pub(crate) const PROTOCOL: &str = "batzen-concurrent";

/// Requests that the server works on at once for one connection; the rest waits in the socket.
pub(crate) const IN_FLIGHT_MAX: usize = 128;
