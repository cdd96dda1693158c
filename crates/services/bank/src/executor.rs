//! Executes a command completely: intent, ledger, books.

use std::sync::Arc;
use std::time::Duration;

use batzen_engine::{Lane, SubmitError};
use batzen_http::{Drain, Waiters, Woken};
use batzen_tables::bank::TransactionKey;
use tokio::time::Instant;

use crate::lane_rules::BankLaneRules;
use crate::rules::{Answer, Command, Refusal};
use crate::settler::{Settler, Unsettled};

/// Time that a client waits for the ledger. After that it has to try again later; its command continues.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// Number of retries of a command after concurrent changes.
const ATTEMPTS_MAX: u32 = 100;

/// Why a command was not decided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExecuteError {
    /// The store.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] Unsettled),
}

/// Returns whether the command may write an intent.
fn moves_money(command: &Command) -> bool {
    !matches!(
        command,
        Command::Open(_)
            | Command::SetPassword(_)
            | Command::MarkExchange(_)
            | Command::CreateWithdrawal(_)
            | Command::Finish(_)
    )
}

/// Executes commands.
pub(crate) struct CommandExecutor {
    pub(crate) lane: Lane<BankLaneRules>,
    pub(crate) settler: Settler,
    /// Callers that wait until an intent is decided.
    pub(crate) decided: Arc<Waiters<TransactionKey>>,
}

impl CommandExecutor {
    /// Executes a command. Returns when its effect is durable in the ledger and in the books.
    pub(crate) async fn execute(&self, command: Command) -> Result<Result<Answer, Refusal>, ExecuteError> {
        if !moves_money(&command) {
            return Ok(self.lane.submit(command).await?);
        }
        let deadline = Instant::now() + ANSWER_MAX;
        let mut place = Some(self.settler.place().ok_or(SubmitError::Overloaded)?);
        // Only a confirmation may need a second attempt.
        let again = matches!(command, Command::ConfirmWithdrawal(_)).then(|| command.clone());
        let mut command = command;
        let mut waiter = None;
        for _ in 0..ATTEMPTS_MAX {
            match self.lane.submit(command).await? {
                Ok(Answer::Intended(intent)) => {
                    let place = match place.take() {
                        Some(place) => place,
                        None => self.settler.place().ok_or(SubmitError::Overloaded)?,
                    };
                    let settled = tokio::time::timeout_at(deadline, self.settler.settle(*intent, place));
                    let settled = settled.await.ok().flatten().unwrap_or(Err(Unsettled::Waiting))?;
                    match (settled, &again) {
                        (Err(Refusal::ReservationExpired), Some(again)) => command = again.clone(),
                        (settled, _) => return Ok(settled),
                    }
                }
                Err(Refusal::InFlight { key, command: same }) => {
                    command = *same;
                    match waiter.take() {
                        // Registered before the check, so that no decision is missed.
                        Some((known, mut waiting)) if known == key => {
                            let waiting: &mut batzen_http::Waiter<TransactionKey> = &mut waiting;
                            if waiting.wait_until(Some(deadline), &Drain::new()).await != Woken::Event {
                                return Err(Unsettled::Waiting.into());
                            }
                        }
                        _ => {
                            let waiting = self.decided.register(key.clone());
                            waiter = Some((key, waiting.map_err(|_| SubmitError::Overloaded)?));
                        }
                    }
                }
                verdict => return Ok(verdict),
            }
        }
        Err(SubmitError::Overloaded.into())
    }
}
