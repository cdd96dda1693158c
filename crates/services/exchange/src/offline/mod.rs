//! The offline tool: signs, with the master key, everything that an exchange publishes.
//!
//! The machine with the master key needs no network: `download` and `upload` run elsewhere and exchange JSON
//! documents with it, each an array of operations. Sub-commands are chained on one command line, and each
//! passes its result to the next: `download sign upload`. The tool describes what it signs before it signs.
//!
//! The tool uses the machine's real clock and never the exchange's database.

use std::path::PathBuf;

use batzen_crypto::EddsaPrivateKey;
use batzen_http::client::{Client, ClientError, ClientOptions};
use batzen_protocol::Timestamp;
use batzen_protocol::api::offline::OfflineOperation;

pub use crate::config::OfflineConfig;
use batzen_signer::files::KeyFileError;

mod calendar;
mod commands;
mod fee_years;
mod sign;
mod tofu;
mod upload;

pub use commands::GlobalFeeTerms;
pub use commands::HELP;
pub(crate) use commands::{Step, parse};
pub use sign::{disable_auditor, disable_wire, enable_auditor, global_fee};
pub use sign::{drain, enable_wire, revoke_denomination, revoke_signkey, sign_keys, wire_fee};
pub(crate) use sign::{extensions, year};
pub(crate) use tofu::{ModuleKeys, check_modules};
pub use upload::{download, upload};

/// Why the tool stopped. The failed step had no effect; the steps before it did.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The command line is wrong: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A file with keys cannot be read or written.
    #[error(transparent)]
    KeyFile(#[from] KeyFileError),
    /// There is no master key yet.
    #[error("{0}: there is no master key here; create it with `setup`")]
    NoMasterKey(PathBuf),
    /// The documents do not fit the step.
    #[error("{0}")]
    Input(String),
    /// Something that must not be signed: another exchange's keys, or keys that the known security module has
    /// not signed.
    #[error("refused to sign: {0}")]
    Refused(String),
    /// The exchange still creates keys, so what it has is not all that must be signed: exit code 3.
    #[error("the exchange is still creating keys; nothing was downloaded: run this again")]
    KeysInTheMaking,
    /// The exchange could not be reached, or refused the request.
    #[error(transparent)]
    Http(#[from] ClientError),
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct OfflineOutput {
    /// Operations that were not uploaded, to be written to standard output as a JSON array unless empty.
    pub(crate) operations: Vec<OfflineOperation>,
    /// Calendars, to be written to standard output before the operations.
    pub reports: Vec<String>,
}

impl OfflineOutput {
    /// The JSON text for standard output; none if nothing is left.
    pub fn to_json(&self) -> Option<String> {
        if self.operations.is_empty() {
            return None;
        }
        Some(
            serde_json::to_string_pretty(&self.operations).expect("operations can be written as JSON") + "\n",
        )
    }
}

/// The tool: its configuration, input and output.
pub struct Offline<'a> {
    /// Its configuration.
    pub config: OfflineConfig,
    /// Prints a description of what is shown, signed and uploaded (standard error).
    pub say: &'a mut (dyn FnMut(&str) + Send),
    /// Called when a step needs documents and no earlier step made any (standard input).
    pub input: &'a mut (dyn FnMut() -> std::io::Result<String> + Send),
    /// The current time.
    pub now: Timestamp,
}

impl Offline<'_> {
    /// Runs a chain of sub-commands.
    ///
    /// # Errors
    /// The first step that fails.
    pub async fn run(&mut self, arguments: &[String]) -> Result<OfflineOutput, OfflineError> {
        let steps = parse(arguments)?;
        let mut outcome = OfflineOutput::default();
        let is_calendar_last = matches!(steps.last(), Some(Step::Calendar { .. }));
        for step in steps {
            match step {
                Step::Calendar { is_json } => {
                    let report = self.calendar(is_json, &mut outcome.operations).await?;
                    outcome.reports.push(report);
                }
                step => self.step(step, &mut outcome.operations).await?,
            }
        }
        if is_calendar_last {
            // The documents were shown; a chain that passes them on does not end with this step.
            outcome.operations.clear();
        }
        if let Some(reminder) = fee_years::reminder(arguments, self.now) {
            (self.say)(&reminder);
        }
        Ok(outcome)
    }

    /// The calendar of the documents, or else of the exchange. If no exchange is configured, documents are
    /// read.
    async fn calendar(
        &mut self,
        is_json: bool,
        operations: &mut Vec<OfflineOperation>,
    ) -> Result<String, OfflineError> {
        if self.config.base_url.is_none() {
            self.documents(operations)?;
        }
        let calendar = if operations.is_empty() {
            let (client, base_url) = self.client()?;
            calendar::of_exchange(&client, base_url).await?
        } else {
            calendar::of_documents(operations)
        };
        Ok(if is_json {
            calendar::to_json(&calendar, self.now)
        } else {
            calendar::to_text(&calendar, self.now)
        })
    }

    fn client(&self) -> Result<(Client, &str), OfflineError> {
        let base_url = self.config.base_url.as_deref();
        let base_url =
            base_url.ok_or_else(|| OfflineError::Input("[exchange] BASE_URL is not configured".into()))?;
        Ok((Client::new(&ClientOptions::default())?, base_url))
    }

    /// The master key, which must be the configured one.
    ///
    /// # Errors
    /// When there is none, or it is not the configured one.
    pub(crate) fn master(&self) -> Result<EddsaPrivateKey, OfflineError> {
        let path = &self.config.master_priv_file;
        if !path.exists() {
            return Err(OfflineError::NoMasterKey(path.clone()));
        }
        let key = crate::keys::load_or_create_eddsa(path)?;
        match self.config.master_public_key {
            Some(expected) if expected != key.public_key() => Err(OfflineError::Refused(
                "[exchange] MASTER_PUBLIC_KEY is not the public half of the key here".into(),
            )),
            _ => Ok(key),
        }
    }

    /// The operations made so far, or those on the input if there are none.
    fn documents(&mut self, operations: &mut Vec<OfflineOperation>) -> Result<(), OfflineError> {
        if !operations.is_empty() {
            return Ok(());
        }
        let text = (self.input)().map_err(|error| OfflineError::Input(format!("input: {error}")))?;
        *operations =
            serde_json::from_str(&text).map_err(|error| OfflineError::Input(format!("input: {error}")))?;
        Ok(())
    }

    async fn step(&mut self, step: Step, operations: &mut Vec<OfflineOperation>) -> Result<(), OfflineError> {
        let (now, currency) = (self.now, self.config.currency);
        let operation = match step {
            Step::Help => {
                (self.say)(HELP);
                return Ok(());
            }
            Step::Setup => self.setup()?,
            Step::Download => {
                let (client, base_url) = self.client()?;
                let base_url = base_url.to_owned();
                let keys = upload::download_all(&client, &base_url, &mut *self.say).await?;
                OfflineOperation::InputKeys(Box::new(keys))
            }
            Step::Show => {
                self.documents(operations)?;
                for operation in &*operations {
                    (self.say)(&sign::describe(operation));
                }
                return Ok(());
            }
            Step::Sign => {
                self.documents(operations)?;
                return self.sign(operations);
            }
            Step::Upload => {
                self.documents(operations)?;
                let (client, base_url) = self.client()?;
                let base_url = base_url.to_owned();
                for operation in std::mem::take(operations) {
                    if upload(&client, &base_url, &operation).await? {
                        (self.say)(&format!("uploaded: {}", sign::title(&operation)));
                    }
                }
                return Ok(());
            }
            Step::EnableAccount { payto_uri } => enable_wire(&self.master()?, &payto_uri, now)?,
            Step::DisableAccount { payto_uri } => disable_wire(&self.master()?, &payto_uri, now),
            Step::EnableAuditor { auditor_pub, url, name } => {
                enable_auditor(&self.master()?, auditor_pub, &url, &name, now)
            }
            Step::DisableAuditor { auditor_pub } => disable_auditor(&self.master()?, auditor_pub, now),
            Step::WireFee { year: which, method, wire_fee: wire, closing_fee } => {
                wire_fee(&self.master()?, currency, year(which, now)?, &method, wire, closing_fee)?
            }
            Step::GlobalFee { year: which, terms } => {
                global_fee(&self.master()?, currency, year(which, now)?, &terms)?
            }
            Step::RevokeDenomination { h_denom_pub } => revoke_denomination(&self.master()?, h_denom_pub),
            Step::RevokeSignkey { exchange_pub } => revoke_signkey(&self.master()?, exchange_pub),
            Step::Drain { amount, section, payto_uri } => {
                drain(&self.master()?, currency, amount, &section, &payto_uri, now)?
            }
            Step::ExtensionsShow => {
                let text = match &self.config.age_restriction {
                    None => "no extension is enabled".to_owned(),
                    Some(extension) => format!("age restriction, groups {}", extension.age_groups),
                };
                (self.say)(&text);
                return Ok(());
            }
            Step::Calendar { .. } => unreachable!("a calendar changes no documents"),
            Step::ExtensionsSign => extensions(&self.master()?, self.config.age_restriction.as_ref())?,
        };
        (self.say)(&sign::describe(&operation));
        operations.push(operation);
        Ok(())
    }

    fn setup(&mut self) -> Result<OfflineOperation, OfflineError> {
        let key = crate::keys::load_or_create_eddsa(&self.config.master_priv_file)?;
        let exchange_offline_pub = key.public_key();
        Ok(OfflineOperation::Setup(batzen_protocol::api::offline::Setup { exchange_offline_pub }))
    }

    /// Signs all announced keys among the operations.
    fn sign(&mut self, operations: &mut Vec<OfflineOperation>) -> Result<(), OfflineError> {
        let master = self.master()?;
        let mut signed = Vec::new();
        for operation in operations.drain(..) {
            let OfflineOperation::InputKeys(keys) = &operation else {
                signed.push(operation);
                continue;
            };
            (self.say)(&sign::describe(&operation));
            check_modules(&self.config, &ModuleKeys::announced(keys))?;
            signed.push(OfflineOperation::UploadSigs(sign_keys(&master, keys)?));
        }
        *operations = signed;
        Ok(())
    }
}
