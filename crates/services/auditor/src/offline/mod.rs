//! The offline tool: approves an exchange's denominations with the auditor's key.
//!
//! The machine with the key needs no network: `download` and `upload` run elsewhere and exchange JSON documents with it.
//! Sub-commands are chained on one command line, and each passes its result to the next: `download sign upload`.

mod approve;

use batzen_http::client::{Client, ClientError, ClientOptions};
use batzen_protocol::api::exchange::{AuditorSignatureRequest, KeysResponse};
use batzen_protocol::api::offline::{AuditorOperation, AuditorSetup};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::config::{AuditorConfig, KeyError};

pub use approve::approve;
pub(crate) use approve::describe;

/// The text of `help`.
pub const HELP: &str = "\
Sub-commands are run in their order; each takes the documents of those before it, or standard input.

  setup       create the auditor's key, show its public half
  download    get the exchange's keys
  show [-]    say in words what the keys are; with -, pass them on
  sign        check the keys, and approve every denomination
  upload      give the approvals to the exchange
  help        this text

The exchange must know the auditor first: exchange offline enable-auditor PUB URL NAME upload.
The usual start is: download sign upload";

/// The largest `/keys` of an exchange, in bytes.
const KEYS_BYTES_MAX: usize = 16 << 20;
/// Approvals that are uploaded at the same time.
const UPLOADS_AT_ONCE: usize = 8;

/// One sub-command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the help text above says what each is")]
pub(crate) enum Step {
    Help,
    Setup,
    Download,
    Show { passes_on: bool },
    Sign,
    Upload,
}

/// Why the tool stopped. The failed step may have uploaded some approvals; uploading them again does no harm.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The command line is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The auditor's key is not known.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An option that a step needs is missing.
    #[error("{0} is not configured")]
    NotConfigured(&'static str),
    /// The documents do not fit the step.
    #[error("{0}")]
    Input(String),
    /// Something that must not be signed.
    #[error("refused to sign: {0}")]
    Refused(String),
    /// The exchange could not be reached, or refused the request.
    #[error(transparent)]
    Http(#[from] ClientError),
}

/// Reads a chain of sub-commands.
///
/// # Errors
/// [`OfflineError::Usage`] with the sub-command and what is wrong with it.
pub(crate) fn parse(arguments: &[String]) -> Result<Vec<Step>, OfflineError> {
    let mut steps = Vec::new();
    let mut rest = arguments.iter().map(String::as_str).peekable();
    while let Some(command) = rest.next() {
        steps.push(match command {
            "help" => Step::Help,
            "setup" => Step::Setup,
            "download" => Step::Download,
            "show" => Step::Show { passes_on: rest.next_if_eq(&"-").is_some() },
            "sign" => Step::Sign,
            "upload" => Step::Upload,
            unknown => return Err(OfflineError::Usage(format!("unknown sub-command {unknown}\n\n{HELP}"))),
        });
    }
    if steps.is_empty() {
        return Err(OfflineError::Usage(HELP.to_owned()));
    }
    Ok(steps)
}

/// The documents that steps pass on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents(pub Vec<AuditorOperation>);

impl Documents {
    /// Reads an operation, or a list of them.
    ///
    /// # Errors
    /// [`OfflineError::Input`].
    pub(crate) fn read(text: &str) -> Result<Self, OfflineError> {
        let bad = |error: serde_json::Error| OfflineError::Input(format!("input: {error}"));
        if text.trim_start().starts_with('[') {
            return serde_json::from_str(text).map(Self).map_err(bad);
        }
        serde_json::from_str(text).map(|operation| Self(vec![operation])).map_err(bad)
    }

    /// The JSON text: approvals are a list; anything else that stands alone is an object. None if nothing is left.
    #[must_use]
    pub fn to_json(&self) -> Option<String> {
        let text = match self.0.as_slice() {
            [] => return None,
            [operation] if !matches!(operation, AuditorOperation::SignDenomination(_)) => {
                serde_json::to_string_pretty(operation)
            }
            operations => serde_json::to_string_pretty(operations),
        };
        Some(text.expect("operations can be written as JSON") + "\n")
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct OfflineOutput {
    /// Text for standard output: keys in words, or the auditor's key.
    pub report: String,
    /// Documents that no step took.
    pub documents: Documents,
}

/// The tool: its configuration, input and output.
pub struct Offline<'a> {
    /// Its configuration.
    pub config: AuditorConfig,
    /// Prints a description of what is signed and uploaded (standard error).
    pub say: &'a mut (dyn FnMut(&str) + Send),
    /// Called when a step needs documents and no earlier step made any (standard input).
    pub input: &'a mut (dyn FnMut() -> std::io::Result<String> + Send),
}

impl Offline<'_> {
    /// Runs a chain of sub-commands. The future is boxed, so that its code is compiled once, with this crate.
    ///
    /// # Errors
    /// The first step that fails.
    pub fn run<'a>(
        &'a mut self,
        arguments: &'a [String],
    ) -> BoxFuture<'a, Result<OfflineOutput, OfflineError>> {
        Box::pin(self.run_all(arguments))
    }

    async fn run_all(&mut self, arguments: &[String]) -> Result<OfflineOutput, OfflineError> {
        let steps = parse(arguments)?;
        let mut outcome = OfflineOutput::default();
        let is_alone = steps.len() == 1;
        for step in steps {
            let documents = &mut outcome.documents;
            match step {
                Step::Help => (self.say)(HELP),
                Step::Setup => {
                    let auditor_pub = self.config.create_key()?.public_key();
                    if is_alone {
                        outcome.report = format!("{auditor_pub}\n");
                    } else {
                        documents.0.push(AuditorOperation::Setup(AuditorSetup { auditor_pub }));
                    }
                }
                Step::Download => {
                    let keys = download(&self.config).await?;
                    documents.0.push(AuditorOperation::Keys(Box::new(keys)));
                }
                Step::Show { passes_on } => {
                    self.read(documents)?;
                    let text: String = documents.0.iter().map(describe).collect();
                    if passes_on {
                        (self.say)(text.trim_end());
                    } else {
                        outcome.report += &text;
                        documents.0.clear();
                    }
                }
                Step::Sign => {
                    self.read(documents)?;
                    self.sign(documents)?;
                }
                Step::Upload => {
                    self.read(documents)?;
                    self.upload(std::mem::take(documents)).await?;
                }
            }
        }
        Ok(outcome)
    }

    /// The documents made so far, or those on the input if there are none.
    fn read(&mut self, documents: &mut Documents) -> Result<(), OfflineError> {
        if documents.0.is_empty() {
            let text = (self.input)().map_err(|error| OfflineError::Input(format!("input: {error}")))?;
            *documents = Documents::read(&text)?;
        }
        Ok(())
    }

    /// Replaces keys by approvals.
    fn sign(&mut self, documents: &mut Documents) -> Result<(), OfflineError> {
        let key = self.config.private_key()?;
        let url = self.config.base_url.as_deref();
        let url = url.ok_or(OfflineError::NotConfigured("[auditor] BASE_URL"))?;
        let master_pub =
            self.config.master_pub.ok_or(OfflineError::NotConfigured("[exchange] MASTER_PUBLIC_KEY"))?;
        let mut signed = Vec::new();
        let mut has_keys = false;
        for operation in documents.0.drain(..) {
            let AuditorOperation::Keys(keys) = &operation else {
                signed.push(operation);
                continue;
            };
            has_keys = true;
            let approvals = approve(&key, url, master_pub, self.config.currency, keys)?;
            (self.say)(&format!("signed: approvals of {} denominations for {url}", approvals.len()));
            signed.extend(approvals.into_iter().map(AuditorOperation::SignDenomination));
        }
        *documents = Documents(signed);
        if has_keys { Ok(()) } else { Err(OfflineError::Input("there are no keys to sign".into())) }
    }

    async fn upload(&mut self, documents: Documents) -> Result<(), OfflineError> {
        let base = format!("{}auditors/{}/", exchange_url(&self.config)?, self.config.auditor_pub()?);
        let client = client()?;
        let approvals = documents.0.into_iter().filter_map(|operation| match operation {
            AuditorOperation::SignDenomination(approval) => Some(approval),
            _ => None,
        });
        let posts = stream::iter(approvals).map(|approval| {
            let (url, client) = (format!("{base}{}", approval.h_denom_pub), &client);
            async move {
                let body = AuditorSignatureRequest { auditor_sig: approval.auditor_sig };
                let reply = client.post_json(url, &body).await?;
                reply.expect(&[200, 204])?;
                Ok::<_, OfflineError>(1_u64)
            }
        });
        let posts = posts.buffer_unordered(UPLOADS_AT_ONCE);
        let count = posts.try_fold(0, |sum, one| async move { Ok(sum + one) }).await?;
        (self.say)(&format!("uploaded: approvals of {count} denominations"));
        Ok(())
    }
}

fn exchange_url(config: &AuditorConfig) -> Result<&str, OfflineError> {
    config.exchange_url.as_deref().ok_or(OfflineError::NotConfigured("[exchange] BASE_URL"))
}

fn client() -> Result<Client, OfflineError> {
    let options =
        ClientOptions { max_reply_bytes: KEYS_BYTES_MAX, accept_deflate: true, ..ClientOptions::default() };
    Ok(Client::new(&options)?)
}

async fn download(config: &AuditorConfig) -> Result<KeysResponse, OfflineError> {
    let url = format!("{}keys", exchange_url(config)?);
    Ok(client()?.get_json(url).await?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(line: &str) -> Result<Vec<Step>, OfflineError> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn chains() {
        assert_eq!(steps("download sign upload").unwrap(), [Step::Download, Step::Sign, Step::Upload]);
        let shown = |passes_on| Step::Show { passes_on };
        assert_eq!(steps("show - sign show").unwrap(), [shown(true), Step::Sign, shown(false)]);
        for wrong in ["", "singn", "download -", "sign upload now"] {
            assert!(matches!(steps(wrong), Err(OfflineError::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn documents_are_an_object_or_a_list() {
        let setup = AuditorOperation::Setup(AuditorSetup {
            auditor_pub: batzen_crypto::EddsaPublicKey::from_bytes([1; 32]),
        });
        let one = Documents(vec![setup.clone()]);
        let text = one.to_json().unwrap();
        assert!(text.starts_with("{\n  \"operation\": \"auditor-setup-0\",\n  \"arguments\": {"), "{text}");
        assert_eq!(Documents::read(&text).unwrap(), one);
        let two = Documents(vec![setup.clone(), setup]);
        let text = two.to_json().unwrap();
        assert!(text.starts_with('['), "{text}");
        assert_eq!(Documents::read(&text).unwrap(), two);
        assert_eq!(Documents::default().to_json(), None);
        assert!(matches!(Documents::read("{}"), Err(OfflineError::Input(_))));
    }
}
