//! Load: the generator, the requests that it sends, and the measurements while it runs.
//!
//! | module | contents |
//! |---|---|
//! | [`generator`] | closed and open loops: few threads, many connections, requests prepared in advance |
//! | [`wire`] | HTTP/1.1 as the generator needs it |
//! | [`prepared`] | scripts whose requests are all prepared in advance |
//! | [`coins`], [`payments`], [`change`] | reserves, coins, payments and refreshes in bulk |
//! | [`random`] | choices and secrets that follow from a seed |
//! | [`measure`] | the steps of a run: set-up, peak probe, load, checks, result |
//! | [`moments`] | latency in intervals of ten milliseconds |
//! | [`scrape`], [`procfs`] | what a service counts, and what the kernel counts for it |
//! | [`meter`] | CPU time of pieces of code on one core |
//! | [`affinity`] | which cores the server and the generator run on |
//! | [`progress`] | progress bars |

pub mod affinity;
pub mod change;
pub mod coins;
pub mod generator;
pub mod measure;
pub mod meter;
pub mod moments;
pub mod payments;
pub mod prepared;
pub mod procfs;
pub mod progress;
pub mod random;
pub mod scrape;
pub mod wire;
