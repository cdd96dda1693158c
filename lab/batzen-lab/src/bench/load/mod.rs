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

pub(crate) mod affinity;
pub(crate) mod change;
pub(crate) mod coins;
pub(crate) mod generator;
pub(crate) mod measure;
pub(crate) mod meter;
pub(crate) mod moments;
pub(crate) mod payments;
pub(crate) mod prepared;
pub(crate) mod procfs;
pub(crate) mod progress;
pub(crate) mod random;
pub(crate) mod scrape;
pub(crate) mod wire;
