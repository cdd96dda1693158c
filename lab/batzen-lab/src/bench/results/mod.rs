//! Results: the files of a run, and reports, comparisons and tables of them.
//!
//! | module | contents |
//! |---|---|
//! | [`result`] | the directory of a run: figures, series, latency by percentile |
//! | [`machine`] | the machine of a run |
//! | [`summary`] | a run in a few lines |
//! | [`report`] | `batzen-lab bench report`: runs as one HTML page with plots |
//! | [`table`] | `batzen-lab bench table`: Markdown tables of documents |
//! | [`figures`] | `batzen-lab bench figures`: figures of the project's documents |
//! | [`compare`] | `batzen-lab bench compare`: one run beside another |
//! | `svg` | plots as SVG |
//! | `output` | standard output and files written as a whole |
//!
//! All of them format numbers with [`batzen_cli_support::numbers`].

pub mod compare;
pub mod figures;
pub mod machine;
pub(crate) mod output;
pub mod report;
pub mod result;
pub mod summary;
pub(crate) mod svg;
pub mod table;
pub(crate) mod words;
