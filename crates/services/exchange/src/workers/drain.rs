//! drain: turns orders to pay out profit into prepared transfers.
//!
//! The master key's signature on an order is the decision. It was checked when the order arrived, and it is
//! checked again here before money moves. So is the income, since version 0.2.0 took orders for any amount.

use std::sync::Arc;

use batzen_crypto::{HashCode, Wtid};
use batzen_protocol::signatures::SignedMessage;
use batzen_store::Found;
use batzen_tables::exchange::Drains;

use super::{
    Aside, ItemError, Mode, Progress, WorkerError, check_drain, debit_account, debit_accounts, decide,
    idle_interval, pause, queues, read,
};
use crate::core::Core;
use crate::rules::ExecuteDrain;
use crate::rules::transfers::payto_method;

/// Number of orders that are read at once.
const PAGE: usize = 256;

/// Executes all orders that can be executed.
///
/// # Errors
/// When the store fails repeatedly; what was executed before stays.
pub async fn run_until_idle(app: &Core) -> Result<Progress, WorkerError> {
    Orders { app, mode: Mode::UntilIdle, aside: Aside::new() }.round().await
}

/// Executes orders until the service ends.
pub(super) async fn run(app: &Core) -> Result<(), WorkerError> {
    let mut orders = Orders { app, mode: Mode::Service, aside: Aside::new() };
    loop {
        orders.round().await?;
        pause(app, idle_interval(app.config.workers.closer_idle_sleep)).await?;
    }
}

struct Orders<'a> {
    app: &'a Core,
    mode: Mode,
    aside: Aside<Wtid>,
}

impl Orders<'_> {
    async fn round(&mut self) -> Result<Progress, WorkerError> {
        let mut progress = Progress::default();
        let mut position = None;
        loop {
            let from = position.take();
            let page =
                read(self.app, move |store| queues::open::<Drains>(store, Drains::OPEN, from, PAGE)).await?;
            for found in &page {
                check_drain(self.app)?;
                match self.execute(found).await? {
                    Ok(is_new) => progress.done += u64::from(is_new),
                    Err(reason) => {
                        let wtid = found.key.wtid;
                        if self.aside.insert(wtid) {
                            tracing::error!(%wtid, %reason, "an order cannot be executed, set aside");
                        }
                    }
                }
            }
            match page.last() {
                Some(last) if page.len() == PAGE => position = Some(queues::serial_position(last.serial)),
                _ => break,
            }
        }
        progress.set_aside = self.aside.end_round();
        Ok(progress)
    }

    async fn execute(&self, found: &Found<Drains>) -> Result<Result<bool, ItemError>, WorkerError> {
        let (app, wtid, order) = (self.app, found.key.wtid, &found.row);
        let message = order.message(wtid, app.config.currency);
        if !message.verify(&app.master_public_key, &order.master_sig) {
            return Ok(Err(ItemError::NotSigned));
        }
        let Some(method) = payto_method(&order.payto_uri) else {
            return Ok(Err(ItemError::NoWireMethod(order.payto_uri.clone())));
        };
        // The account that the order names if it can pay the receiver, otherwise any account that can.
        let named = debit_accounts(app).find(|account| {
            account.config.section.eq_ignore_ascii_case(&order.account_section)
                && account.method.eq_ignore_ascii_case(method)
        });
        let Some(account) = named.or_else(|| debit_account(app, method)) else {
            return Ok(Err(ItemError::NoDebitAccount(method.to_owned())));
        };
        let rules = Arc::clone(&app.rules);
        let income = read(app, move |store| rules.flow.income(&rules.denoms, store)).await?;
        if !income.is_some_and(|income| income.covers(order.amount)) {
            return Ok(Err(ItemError::NotEarned));
        }
        let command = ExecuteDrain {
            wtid,
            h_payto: message.h_payto,
            account: account.id,
            request_uid: HashCode::from_bytes(app.random()),
        };
        match decide(app, self.mode, command).await? {
            Ok(drained) => {
                if !drained.repeated {
                    tracing::info!(%wtid, amount = %drained.amount, to = order.payto_uri, "profit is paid out");
                    app.metrics.workers.drains.inc();
                    app.notices.transfers.announce(&[]);
                }
                Ok(Ok(!drained.repeated))
            }
            Err(refusal) => Ok(Err(refusal.into())),
        }
    }
}
