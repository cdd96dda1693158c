//! The step in which the sandbox gives a tip: it fills a reserve, from which a customer's wallet picks up coins.

use std::time::Duration as StdDuration;

use anyhow::{Context, ensure};
use batzen_protocol::api::merchant::{AuthorizeTipResponse, CreateTipReserveResponse, TipDetails};
use batzen_service::wire_gateway::AddIncomingRequest;
use batzen_wallet::{RunUntil, Status, TipUri};
use serde_json::{Value, json};

use super::cycle::{PATIENCE, Round};
use super::report::StepSummary;
use super::shops::{SANDBOX, payto};
use super::world::CUSTOMER;

/// The sum that the shop pays into its reserve.
const FILLED: &str = "3";
/// The sum that it gives from it.
const TIP: &str = "0.81";
/// The pause between two looks at the reserve.
const PAUSE: StdDuration = StdDuration::from_millis(50);

impl Round<'_> {
    /// The sandbox thanks a customer with a few coins.
    pub(super) async fn tip(&self) -> anyhow::Result<((), StepSummary)> {
        let (filled, amount) = (self.amount(FILLED)?, self.amount(TIP)?);
        let wish = json!({
            "initial_balance": filled, "exchange_url": self.exchange_url, "wire_method": "x-taler-bank",
        });
        let made = self.sandbox("private/reserves", Some(&wish)).await?;
        let CreateTipReserveResponse { reserve_pub, .. } = serde_json::from_value(made)?;
        let transfer = AddIncomingRequest { amount: filled, reserve_pub, debit_account: payto(SANDBOX) };
        self.gateway().add_incoming(&transfer).await?;
        let reserve = format!("private/reserves/{reserve_pub}");
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.sandbox(&reserve, None).await?["exchange_initial_amount"] != json!(filled) {
            ensure!(tokio::time::Instant::now() < deadline, "the backend does not see the reserve's money");
            tokio::time::sleep(PAUSE).await;
        }

        let next_url = self.world.shops.shop.url();
        let wish = json!({ "amount": amount, "justification": "a good idea", "next_url": next_url });
        let tip: AuthorizeTipResponse =
            serde_json::from_value(self.sandbox("private/tips", Some(&wish)).await?)?;
        let name = format!("{CUSTOMER}{}", self.world.run);
        let wallet = self.world.wallet(&name)?;
        let uri = TipUri::parse(&tip.taler_tip_uri)?;
        let offer = wallet.inspect_tip(&uri).await?;
        ensure!(offer.amount == amount, "the tip is {} instead of {amount}", offer.amount);
        let id = wallet.accept_tip(&offer).await?;
        wallet.run(RunUntil::Finished(Some(PATIENCE))).await?;
        let line = wallet.transaction(id)?;
        ensure!(line.status == Status::Done && line.coins > 0, "the wallet did not get the tip: {line:?}");
        let details: Value = self.sandbox(&format!("private/tips/{}", tip.tip_id), None).await?;
        let details: TipDetails = serde_json::from_value(details).context("the tip's details")?;
        ensure!(details.total_picked_up.money <= amount.money, "more was picked up than was given");
        let (count, picked_up) = (line.coins, details.total_picked_up);
        let summary =
            format!("{name} got {picked_up} from a shop that has {filled} for tips, in {count} coins");
        Ok(((), StepSummary { count, summary }))
    }
}
