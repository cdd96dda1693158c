//! Whether exchanges ask who owns the shop's accounts: `/private/kyc` (merchant chapter 6.12).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use batzen_crypto::HashCode;
use batzen_http::client::ClientError;
use batzen_http::{Request, Response};
use batzen_protocol::api::exchange::KycRedirect;
use batzen_protocol::api::merchant::{KycOpen, PendingKyc, TimeoutKyc};
use batzen_protocol::payto::h_payto;
use batzen_protocol::{ErrorCode, ErrorDetail, Timestamp};
use batzen_store::Store;
use batzen_tables::merchant::{
    AccountKycKey, AccountKycRow, AccountKycs, OrderDepositRow, OrderDeposits, OrderRef, OrderRow,
};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use super::tracking::Tracked;
use super::{Answer, Service, Shop, refused};
use crate::rules::RecordKyc;

/// After this time, an exchange is asked again whether it wants to know who owns an account.
const ASK_AGAIN: batzen_protocol::Duration = batzen_protocol::Duration::from_secs(3_600);
/// How often the payments of an instance are a reason to look whether an exchange was asked.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// The maximum number of instances of which something is remembered.
const INSTANCES_MAX: usize = 65_536;
/// Questions to exchanges that are under way at the same time.
const QUESTIONS_AT_ONCE: usize = 16;
/// The longest that an exchange is asked to wait for an identification.
const WAIT_MAX: Duration = Duration::from_secs(8);

/// What an exchange says about an account.
enum Kyc {
    /// The owner shall identify there.
    Open(PendingKyc),
    /// It asks for nothing.
    Done,
    /// It did not say.
    NoAnswer(TimeoutKyc),
}

/// When the payments of each instance last led to the question whether an exchange wants to know its owner.
#[derive(Default)]
pub(super) struct KycPace {
    asked: Mutex<HashMap<String, Instant>>,
}

impl KycPace {
    /// Whether the latest payment is a reason to look again.
    fn is_due(&self, instance: &str) -> bool {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if asked.get(instance).is_some_and(|asked| asked.elapsed() < LOOK_AGAIN) {
            return false;
        }
        if asked.len() >= INSTANCES_MAX {
            // Whatever is thrown away is looked up in the store.
            asked.clear();
        }
        asked.insert(instance.to_owned(), Instant::now());
        true
    }
}

impl Service {
    /// After a payment: asks the exchange, in the background, whether it pays the account without knowing who owns
    /// it, if that was not asked for a while.
    pub(super) fn look_for_kyc(
        self: &Arc<Self>,
        shop: &Shop,
        order: OrderRef,
        h_contract: HashCode,
        row: &OrderRow,
    ) {
        if !self.kyc_pace.is_due(&shop.id) {
            return;
        }
        let Ok(key) = shop.key() else { return };
        let (service, shop, row) = (Arc::clone(self), shop.clone(), row.clone());
        self.background.spawn(async move {
            let read = move |store: &Store| store.lookup::<OrderDeposits>(OrderDeposits::BY_ORDER, &order);
            let (Ok(terms), Ok(deposits)) = (Self::contract_terms(&row), service.read(read).await) else {
                return;
            };
            let Some(found) = deposits.into_iter().next() else { return };
            let OrderDepositRow { exchange_url, .. } = &found.row;
            let kyc = AccountKycKey {
                instance: shop.id.clone(),
                h_wire: terms.h_wire,
                exchange_url: exchange_url.clone(),
            };
            let known = service.read(move |store| store.get::<AccountKycs>(&kyc)).await;
            let Ok(known) = known else { return };
            if known.is_some_and(|known| service.now() < known.row.checked.saturating_add(ASK_AGAIN)) {
                return;
            }
            let coin_pub = found.key.coin_pub;
            let answer = service.track(&shop, &key, h_contract, terms.h_wire, coin_pub, &found.row).await;
            if let Ok(Tracked::Pending(pending)) = answer {
                // If this fails, the next payment asks again.
                let _ = service.note_kyc(&shop, terms.h_wire, exchange_url, &pending).await;
            }
        });
    }

    pub(super) async fn kyc(&self, mut request: Request, shop: &Shop) -> Answer {
        let h_wire = match request.query_text("h_wire") {
            None => None,
            Some(text) => {
                let malformed = |_| Response::error(ErrorCode::GENERIC_PARAMETER_MALFORMED, "h_wire");
                Some(text.parse::<HashCode>().map_err(malformed)?)
            }
        };
        let exchange_url = request.query_text("exchange_url").map(str::to_owned);
        let timeout_ms = request.query_opt::<u64>("timeout_ms")?;
        let id = shop.id.clone();
        let read = move |store: &Store| store.lookup::<AccountKycs>(AccountKycs::BY_INSTANCE, &id);
        let known = self.read(read).await?;
        let accounts = self.accounts(&shop.id).await?;
        let asked = known.into_iter().filter(|found| {
            h_wire.is_none_or(|h_wire| h_wire == found.key.h_wire)
                && exchange_url.as_ref().is_none_or(|url| *url == found.key.exchange_url)
        });
        let questions: Vec<_> = asked
            .filter_map(|found| {
                let requirement_row = found.row.requirement_row?;
                let (_, account) =
                    accounts.iter().find(|(key, row)| key.h_wire == found.key.h_wire && row.active)?;
                Some((found.key, requirement_row, account.payto_uri.clone()))
            })
            .collect();
        if questions.is_empty() {
            return Ok(Response::empty(204));
        }
        request.leave_slot();
        let wait = timeout_ms.map(|ms| Duration::from_millis(ms).min(WAIT_MAX));
        let answers =
            stream::iter(questions.into_iter().map(|(key, requirement_row, payto_uri)| async move {
                let answer = self.ask_for_kyc(&key, requirement_row, &payto_uri, wait).await;
                if matches!(answer, Kyc::Done) {
                    let row = AccountKycRow {
                        requirement_row: None,
                        checked: Timestamp::ZERO,
                        http_status: 0,
                        exchange_code: 0,
                    };
                    let verdict = self.execute(RecordKyc { key, row }).await?;
                    verdict.map_err(|refusal| refused(&refusal, ""))?;
                }
                Ok::<Kyc, Response>(answer)
            }));
        let answers: Vec<_> = answers.buffered(QUESTIONS_AT_ONCE).collect().await;
        let mut open = KycOpen { pending_kycs: Vec::new(), timeout_kycs: Vec::new() };
        for answer in answers {
            match answer? {
                Kyc::Open(pending) => open.pending_kycs.push(pending),
                Kyc::NoAnswer(timeout) => open.timeout_kycs.push(timeout),
                Kyc::Done => {}
            }
        }
        if open.pending_kycs.is_empty() && open.timeout_kycs.is_empty() {
            return Ok(Response::empty(204));
        }
        let status = match (open.pending_kycs.is_empty(), open.timeout_kycs.first()) {
            // Nothing is known, because of the exchanges.
            (true, Some(timeout)) if timeout.exchange_http_status == 0 => 504,
            (true, Some(_)) => 502,
            _ => 202,
        };
        Ok(Response::json(status, &open))
    }

    async fn ask_for_kyc(
        &self,
        key: &AccountKycKey,
        requirement_row: u64,
        payto_uri: &str,
        wait: Option<Duration>,
    ) -> Kyc {
        let url = format!("{}kyc-check/{requirement_row}/{}/business", key.exchange_url, h_payto(payto_uri));
        let mut ask = self.exchanges.client.get(url);
        if let Some(wait) = wait {
            ask = ask.query("timeout_ms", wait.as_millis());
        }
        let no_answer = |exchange_code, exchange_http_status| {
            let exchange_url = key.exchange_url.clone();
            Kyc::NoAnswer(TimeoutKyc { exchange_url, exchange_code, exchange_http_status })
        };
        let reply = match ask.send().await {
            Ok(reply) => reply,
            Err(ClientError::Timeout { .. }) => {
                return no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_TIMEOUT.to_u32(), 0);
            }
            Err(_) => return no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_CONNECT_FAILURE.to_u32(), 0),
        };
        match reply.status {
            200 | 204 => Kyc::Done,
            202 => match reply.json::<KycRedirect>() {
                Ok(KycRedirect { kyc_url }) => Kyc::Open(PendingKyc {
                    kyc_url,
                    exchange_url: key.exchange_url.clone(),
                    payto_uri: payto_uri.to_owned(),
                }),
                Err(_) => no_answer(ErrorCode::MERCHANT_GENERIC_EXCHANGE_REPLY_MALFORMED.to_u32(), 202),
            },
            status => {
                let code = reply.json::<ErrorDetail>().map_or(0, |body| body.code.to_u32());
                no_answer(code, status.into())
            }
        }
    }
}
