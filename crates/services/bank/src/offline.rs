//! A bank without server: fills one with data for a measurement or a migration.

use std::sync::Arc;

use batzen_http::Waiters;
use batzen_ledger::RetryingLedger;
use futures_util::future::BoxFuture;
use tokio::task::JoinSet;

use crate::chart::Chart;
use crate::executor::CommandExecutor;
use crate::lane_rules::{BankLaneRules, JointLedger};
use crate::opening::{self, OpenBooks};
use crate::rules::{BankRules, Command, Finished, Intent};
use crate::settler::BankOutbox;
use crate::wakes::Booked;
use crate::{BankConfig, BankError, LAST_COMMITS};

/// Most concurrent commands: far fewer than the limit of intents.
const COMMANDS_MAX: usize = 8_192;

/// Executes commands at a bank that does not serve, thousands at a time in no particular order, and closes
/// it.
///
/// # Errors
/// [`BankError`]; also when a command is refused.
pub fn execute_all(
    config: BankConfig,
    commands: Box<dyn Iterator<Item = Command> + Send>,
) -> BoxFuture<'static, Result<(), BankError>> {
    Box::pin(execute(config, commands))
}

async fn execute(
    config: BankConfig,
    commands: Box<dyn Iterator<Item = Command> + Send>,
) -> Result<(), BankError> {
    config.check()?;
    let OpenBooks { store, ledger, own, is_joint } = opening::open(&config).await?;
    let rules = BankRules { policy: config.policy() };
    let ledger = RetryingLedger::new(ledger);
    let state = opening::books(&config, rules.clone(), store.clone(), &ledger).await?;
    let decided = Arc::new(Waiters::new(2 * COMMANDS_MAX));
    let woken = Arc::clone(&decided);
    let booked: Booked = Arc::new(move |_: &Intent, finished: &Finished| woken.wake(&finished.key));
    let chart = Chart::new(&state, config.currency);
    let lane =
        BankLaneRules::lane(rules, &store, &config, JointLedger::of(own.as_ref(), is_joint, chart, &booked));
    let (settler, settling) = BankOutbox::start(ledger, chart, lane.clone(), booked);
    opening::left_open(&settler, &store).await?;
    let executor = Arc::new(CommandExecutor { lane, settler, decided });
    let mut running = JoinSet::new();
    let ended =
        |done: Result<Result<(), BankError>, tokio::task::JoinError>| done.expect("the rules do not panic");
    for command in commands {
        if running.len() >= COMMANDS_MAX
            && let Some(done) = running.join_next().await
        {
            ended(done)?;
        }
        let executor = Arc::clone(&executor);
        running.spawn(async move {
            let verdict = executor.execute(command).await;
            let verdict = verdict.map_err(|error| BankError::Unfinished(error.to_string()))?;
            verdict.map(drop).map_err(BankError::Other)
        });
    }
    while let Some(done) = running.join_next().await {
        ended(done)?;
    }
    let lane = Arc::into_inner(executor).expect("all commands have ended").lane;
    settling.end(tokio::time::Instant::now() + LAST_COMMITS).await;
    let close = move || {
        lane.close();
        let ledger = own.map_or(Ok(()), |ledger| ledger.stop());
        store.close().and(ledger)
    };
    Ok(tokio::task::spawn_blocking(close).await.expect("closing the store does not panic")?)
}
