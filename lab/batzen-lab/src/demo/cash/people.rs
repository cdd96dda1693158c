//! The steps in which people pay each other: through purses, in both directions, with an age limit, and with
//! an end that nobody wanted.

use anyhow::{Context, bail, ensure};
use batzen_exchange::workers::expire;
use batzen_protocol::Duration;
use batzen_wallet::core::{CoreError, OpId};
use batzen_wallet::{CipherChoice, CoinWish, PeerRequest, RunUntil, Status, Wallet, WalletError};

use super::cycle::{PATIENCE, Person, Round, make_change};
use super::report::StepSummary;
use super::world::CHILD;

/// Time that most links are valid.
const VALID: Duration = Duration::from_days(1);
/// Time that the link is valid that nobody accepts: as short as its payment allows on a busy machine.
const VALID_BRIEFLY: Duration = Duration::from_secs(6);
/// The age limit of the child's coins.
const AGE_LIMIT: u8 = 14;

impl Round<'_> {
    fn peer_request(&self, amount: &str, summary: &str, valid: Duration) -> anyhow::Result<PeerRequest> {
        Ok(PeerRequest {
            exchange: Some(self.exchange_url.to_owned()),
            amount: self.amount(amount)?,
            summary: summary.to_owned(),
            expiration: self.now().saturating_add(valid),
            min_age: 0,
        })
    }

    /// The receiver takes money that the payer sends with a link.
    pub(super) async fn send(&self, payer: &Person, receiver: &Person) -> anyhow::Result<((), StepSummary)> {
        let request = self.peer_request("1.23", "half of the lunch", VALID)?;
        let id = payer.wallet.send_money(&request).await.context(payer.name)?;
        let peer = receiver.wallet.inspect_peer(&link(&payer.wallet, id)?).await.context(receiver.name)?;
        let accepted = receiver.wallet.accept_peer(&peer).await.context(receiver.name)?;
        make_change(receiver).await?;
        make_change(payer).await?;
        let (paid, got) = (payer.wallet.purse_receipt(id)?, receiver.wallet.purse_receipt(accepted)?);
        ensure!(paid.purse_pub == got.purse_pub && got.merge.is_some(), "the receipts do not fit together");
        ensure!(is_done(&payer.wallet, id)?, "{}'s wallet does not know that it was accepted", payer.name);
        let count = withdrawn(&receiver.wallet)?;
        let (name, sender, amount) = (receiver.name, payer.name, request.amount);
        let summary = format!("{name} got {amount} from {sender} by a link, and {count} coins for it");
        Ok(((), StepSummary { count, summary }))
    }

    /// The payer pays what the receiver requests with a link.
    pub(super) async fn request(
        &self,
        receiver: &Person,
        payer: &Person,
    ) -> anyhow::Result<((), StepSummary)> {
        let request = self.peer_request("0.77", "bus fare", VALID)?;
        let id = receiver.wallet.request_money(&request).await.context(receiver.name)?;
        let waiting = {
            let wallet = receiver.wallet.clone();
            tokio::spawn(async move { wallet.finish_within(id, PATIENCE).await })
        };
        let peer = payer.wallet.inspect_peer(&link(&receiver.wallet, id)?).await.context(payer.name)?;
        payer.wallet.accept_peer(&peer).await.context(payer.name)?;
        waiting.await?.context(receiver.name)?;
        make_change(receiver).await?;
        make_change(payer).await?;
        ensure!(is_done(&receiver.wallet, id)?, "{}'s wallet does not know that it was paid", receiver.name);
        let count = withdrawn(&receiver.wallet)?;
        let (name, sender, amount) = (receiver.name, payer.name, request.amount);
        let summary =
            format!("{name} asked for {amount}, {sender} paid, and the exchange told {name} at once");
        Ok(((), StepSummary { count, summary }))
    }

    /// Nobody accepts what somebody sends, so the exchange gives it back.
    pub(super) async fn expire(&self, person: &Person) -> anyhow::Result<((), StepSummary)> {
        let request = self.peer_request("0.51", "for whoever wants it", VALID_BRIEFLY)?;
        let id = person.wallet.send_money(&request).await.context(person.name)?;
        ensure!(!self.world.sheet().await?.totals.purses.is_zero(), "nothing was paid into the purse");
        let wait = request.expiration.saturating_add(Duration::from_secs(1)).saturating_since(self.now());
        tokio::time::sleep(wait.to_std().unwrap_or_default()).await;
        let count = usize::try_from(expire::run_until_idle(&self.world.app().core).await?.done)?;
        ensure!(count > 0, "no purse expired");
        make_change(person).await?;
        let line = person.wallet.transaction(id)?;
        ensure!(
            line.status == Status::Failed && line.effect.ends_with(":0"),
            "the money is not back: {line:?}"
        );
        let summary = format!("nobody took {} that {} sent: given back", request.amount, person.name);
        Ok(((), StepSummary { count, summary }))
    }

    /// A child with pocket money pays what is allowed at her age, and nothing else.
    pub(super) async fn ages(&self, shop: &Person) -> anyhow::Result<((), StepSummary)> {
        let child = Person { name: CHILD, wallet: self.world.wallet(CHILD)?, withdrawals: &[] };
        child.wallet.add_exchange(self.exchange_url).await.context(child.name)?;
        child.wallet.accept_terms(self.exchange_url)?;
        // Continues what an earlier run left open.
        let report = child.wallet.run(RunUntil::Finished(Some(PATIENCE))).await?;
        ensure!(
            report.pending.is_empty(),
            "{CHILD}: an operation of an earlier run is open: {:?}",
            report.pending
        );
        let wish = CoinWish { cipher: CipherChoice::Rsa, age_limit: Some(AGE_LIMIT) };
        let (bank_url, pocket_money) = (&self.world.bank.base_url, self.amount("3")?);
        let exchange = Some(self.exchange_url);
        let id = child
            .wallet
            .withdraw_from_bank(bank_url, CHILD, CHILD, pocket_money, exchange, wish)
            .await
            .context(child.name)?;
        child.wallet.finish_within(id, PATIENCE).await.context(child.name)?;
        for (min_age, amount, what) in [(18, "1.05", "a film for adults"), (12, "1.05", "a film")] {
            let request = PeerRequest { min_age, ..self.peer_request(amount, what, VALID)? };
            let id = shop.wallet.request_money(&request).await.context(shop.name)?;
            let peer = child.wallet.inspect_peer(&link(&shop.wallet, id)?).await.context(child.name)?;
            let paid = child.wallet.accept_peer(&peer).await;
            match (paid, min_age <= u32::from(AGE_LIMIT)) {
                (Ok(_), true) => {}
                (Err(WalletError::Core(CoreError::AgeNotProven { .. })), false) => shop.wallet.cancel(id)?,
                (Ok(_), false) => bail!("coins for people of {AGE_LIMIT} bought {what}"),
                (Err(error), _) => return Err(error).context(what),
            }
            make_change(shop).await?;
        }
        make_change(&child).await?;
        let coins = child.wallet.coins();
        let limits = coins.iter().map(|coin| coin.age.as_ref().map(|age| age.limit));
        ensure!(limits.clone().all(|limit| limit == Some(AGE_LIMIT)), "change has lost the age limit");
        let summary = format!(
            "{CHILD} has coins with age limit {AGE_LIMIT}: refused for {}, accepted for {}, change keeps the limit",
            "a film for adults", "a film"
        );
        Ok(((), StepSummary { count: coins.len(), summary }))
    }

    /// Money that waits in a purse for its receiver.
    pub(super) async fn leave_purse(&self, person: &Person) -> anyhow::Result<((), StepSummary)> {
        let request = self.peer_request("0.64", "a present", VALID)?;
        person.wallet.send_money(&request).await.context(person.name)?;
        let pending = person.wallet.run_pending().await.context(person.name)?.pending;
        ensure!(pending.len() == 1, "{}: change is not finished: {pending:?}", person.name);
        let sheet = self.world.sheet().await?;
        let (currency, purses) = (self.world.currency, sheet.totals.purses);
        ensure!(purses >= request.amount.money, "the purse is not in the books");
        let summary = format!("{currency}:{purses} wait in a purse for whoever gets the link");
        Ok(((), StepSummary { count: 1, summary }))
    }

    /// Takes back what an earlier run has sent or requested and nobody has accepted or paid.
    pub(super) fn take_back(wallet: &Wallet) -> anyhow::Result<()> {
        for operation in wallet.pending() {
            if matches!(operation.kind, "send" | "request") {
                wallet.cancel(operation.id)?;
            }
        }
        Ok(())
    }
}

/// The link of a payment.
fn link(wallet: &Wallet, id: OpId) -> anyhow::Result<String> {
    wallet.transaction(id)?.uri.context("there is no link")
}

fn is_done(wallet: &Wallet, id: OpId) -> anyhow::Result<bool> {
    Ok(wallet.transaction(id)?.status == Status::Done)
}

/// The number of coins of the latest withdrawal.
fn withdrawn(wallet: &Wallet) -> anyhow::Result<usize> {
    let rows = wallet.transactions(false)?;
    let row = rows.iter().find(|row| row.kind == "withdrawal").context("nothing was withdrawn")?;
    Ok(row.coins)
}
