//! The operators' queries: participants, accounts, positions, windows, sums.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use batzen_http::Response;
use batzen_protocol::Timestamp;
use batzen_protocol::calendar::format_ms;
use batzen_store::StoreError;
use batzen_tables::switch::{
    AccountKind, Endpoints, HUB, Models, Movements, Nets, ParticipantKey, Participants, SwitchAccountKey,
    SwitchAccountRow, SwitchAccounts, TransferKey, Transfers, WindowKey, WindowRow, Windows,
};
use serde_json::{Value, json};

use super::{ADMIN, Answer, HUB_NAME, OperatorRequest, Table, bodies, failed, operator};
use crate::MAX_BODY_BYTES;
use crate::clearing::Balances;
use crate::rules::movements::{MovementKind, MovementState};
use crate::rules::state::{TransferStage, history};
use crate::rules::windows::WindowState;
use crate::rules::{Change, Refusal};
use crate::values::{currency_text, format_amount, format_signed, format_uuid, parse_time, parse_uuid};

/// The most entries in one statement.
const STATEMENT_MAX: usize = 10_000;

fn unread(error: StoreError) -> Response {
    failed(&error.into())
}

fn unknown(what: &'static str) -> Response {
    failed(&Refusal::Unknown(what).into())
}

pub(super) fn time(time: Timestamp) -> String {
    format_ms(time.as_micros() / 1000)
}

fn signed(amount: u128) -> i128 {
    i128::try_from(amount).unwrap_or(i128::MAX)
}

pub(super) fn routes(table: Table) -> Table {
    table
        .get("/participants", ADMIN, operator!(participants))
        .get("/participants/limits", ADMIN, operator!(all_limits))
        .get("/participants/:name", ADMIN, operator!(participant))
        .get("/participants/:name/endpoints", ADMIN, operator!(endpoints))
        .get("/participants/:name/limits", ADMIN, operator!(limits))
        .get("/participants/:name/positions", ADMIN, operator!(positions))
        .get("/participants/:name/statement", ADMIN, operator!(statement))
        .get("/participants/:name/accounts", ADMIN, operator!(accounts))
        .get("/settlementWindows", ADMIN, operator!(windows))
        .get("/settlementWindows/:id", ADMIN, operator!(window))
        .post("/settlementWindows/:id", MAX_BODY_BYTES, ADMIN, operator!(window_close))
        .get("/settlementModels", ADMIN, operator!(models))
        .get("/balances", ADMIN, operator!(balances))
        .get("/transfers/:id", ADMIN, operator!(transfer))
}

impl OperatorRequest<'_> {
    async fn participants(&self) -> Answer {
        let mut all = self.service.store().all::<Participants>().map_err(unread)?;
        all.sort_by_key(|found| found.row.number);
        let all: Result<Vec<Value>, Response> =
            all.iter().map(|found| self.participant_json(&found.row.name)).collect();
        Ok(Response::json(200, &all?))
    }

    async fn participant(&self) -> Answer {
        Ok(Response::json(200, &self.participant_json(self.param("name"))?))
    }

    pub(super) fn participant_json(&self, name: &str) -> Result<Value, Response> {
        let stored = self.service.store().get::<Participants>(&ParticipantKey::new(name)).map_err(unread)?;
        let row = stored.ok_or_else(|| unknown("participant"))?.row;
        let accounts = self.accounts_of(row.number)?;
        let accounts: Vec<Value> = accounts.iter().map(|(key, row)| account_json(key, row)).collect();
        Ok(json!({
            "id": row.number, "name": row.name, "isActive": row.active, "created": time(row.created),
            "accounts": accounts,
        }))
    }

    /// The number of a participant or the hub.
    pub(super) fn number(&self, name: &str) -> Result<u32, Response> {
        if name.eq_ignore_ascii_case(HUB_NAME) {
            return Ok(HUB);
        }
        let directory = self.service.directory();
        directory.by_name(name).map(|entry| entry.number).ok_or_else(|| unknown("participant"))
    }

    fn accounts_of(&self, number: u32) -> Result<Vec<(SwitchAccountKey, SwitchAccountRow)>, Response> {
        let all = self.service.store().all::<SwitchAccounts>().map_err(unread)?;
        let own = all.into_iter().filter(|found| found.key.participant == number);
        Ok(own.filter(|found| found.key.kind != AccountKind::Grant as u8).map(|f| (f.key, f.row)).collect())
    }

    pub(super) fn account_row(
        &self,
        number: u32,
        currency: u32,
        kind: AccountKind,
    ) -> Result<Option<SwitchAccountRow>, Response> {
        let key = SwitchAccountKey::new(number, currency, kind);
        Ok(self.service.store().get::<SwitchAccounts>(&key).map_err(unread)?.map(|stored| stored.row))
    }

    /// An account of this owner, by its number.
    pub(super) fn account_by_id(&self, name: &str, id: &str) -> Result<SwitchAccountKey, Response> {
        let accounts = self.accounts_of(self.number(name)?)?;
        let found = accounts.into_iter().find(|(_, row)| row.id.to_string() == id);
        found.map(|(key, _)| key).ok_or_else(|| unknown("account"))
    }

    async fn endpoints(&self) -> Answer {
        let number = self.number(self.param("name"))?;
        let found = self.service.store().lookup::<Endpoints>(Endpoints::BY_PARTICIPANT, &number);
        let all: Vec<Value> = found
            .map_err(unread)?
            .into_iter()
            .map(|found| json!({ "type": found.key.endpoint, "value": found.row.url }))
            .collect();
        Ok(Response::json(200, &all))
    }

    async fn all_limits(&self) -> Answer {
        self.limits_of(None)
    }

    async fn limits(&self) -> Answer {
        self.limits_of(Some(self.param("name")))
    }

    fn limits_of(&self, name: Option<&str>) -> Answer {
        let only = name.map(|name| self.number(name)).transpose()?;
        let directory = self.service.directory();
        let all = self.service.store().all::<SwitchAccounts>().map_err(unread)?;
        let all: Vec<Value> = all
            .iter()
            .filter(|found| only.is_none_or(|number| found.key.participant == number))
            .filter_map(|found| {
                let ndc = found.row.ndc?;
                Some(json!({
                    "name": directory.name(found.key.participant),
                    "currency": currency_text(found.key.currency),
                    "limit": {
                        "type": "NET_DEBIT_CAP", "value": format_amount(ndc),
                        "alarmPercentage": found.row.alarm_percentage,
                    },
                }))
            })
            .collect();
        Ok(Response::json(200, &all))
    }

    async fn positions(&self) -> Answer {
        let number = self.number(self.param("name"))?;
        let accounts = self.accounts_of(number)?;
        let positions: Vec<_> =
            accounts.into_iter().filter(|(key, _)| key.kind == AccountKind::Position as u8).collect();
        let whose: Vec<_> = positions.iter().map(|(key, _)| (number, key.currency)).collect();
        let balances = Balances::read_all(self.service.treasury.ledger(), &whose).await;
        let all: Vec<Value> = positions
            .iter()
            .zip(balances)
            .map(|((key, row), balances)| {
                json!({
                    "currency": currency_text(key.currency),
                    "value": format_signed(balances.position()),
                    "reservedValue": format_amount(balances.reserved()),
                    "liquidityCover": format_signed(balances.cover()),
                    "netDebitCap": row.ndc.map(format_amount),
                    "headroom": format_signed(balances.granted() - balances.position()),
                    "overLimit": row.over_limit != 0,
                })
            })
            .collect();
        Ok(Response::json(200, &all))
    }

    async fn accounts(&self) -> Answer {
        let number = self.number(self.param("name"))?;
        let accounts = self.accounts_of(number)?;
        let ids: Vec<u128> = accounts.iter().map(|(key, _)| key.ledger_id()).collect();
        let ledger = self.service.treasury.ledger();
        let found = ledger.lookup(&ids).await;
        let mut all = Vec::new();
        for ((key, row), account) in accounts.iter().zip(found) {
            let mut value = account_json(key, row);
            let debit = signed(account.debits_posted) + signed(account.debits_pending);
            // A position is the debt beyond the granted headroom; deposits are shown as the hub's liability.
            let shown = if key.kind == AccountKind::Position as u8 {
                Balances::read(ledger, number, key.currency).await.position()
            } else {
                debit - signed(account.credits_posted)
            };
            value["value"] = json!(format_signed(shown));
            value["reservedValue"] = json!(format_amount(account.debits_pending));
            all.push(value);
        }
        Ok(Response::json(200, &all))
    }

    async fn windows(&self) -> Answer {
        let request = self.request;
        let participant = request.query_text("participantId").and_then(|text| text.parse::<u32>().ok());
        let bound = |name: &str| request.query_text(name).map(|text| parse_time(text).unwrap_or(0));
        let (from, to) = (bound("fromDateTime"), bound("toDateTime"));
        let state = request.query_text("state");
        let mut shown = Vec::new();
        for found in self.service.store().all::<Windows>().map_err(unread)? {
            let row = self.counted(found.key.id, found.row)?;
            let created = row.created.as_micros() / 1000;
            let fits = state.is_none_or(|state| WindowState::of(&row).name() == state)
                && from.is_none_or(|from| created >= from)
                && to.is_none_or(|to| created <= to);
            if !fits {
                continue;
            }
            let value = self.window_json(found.key.id, &row)?;
            let takes_part = |number: u32| {
                value["content"]
                    .as_array()
                    .is_some_and(|all| all.iter().any(|one| one["participantId"] == number))
            };
            if participant.is_none_or(takes_part) {
                shown.push(value);
            }
        }
        Ok(Response::json(200, &shown))
    }

    async fn window(&self) -> Answer {
        let id: u64 = self.param("id").parse().map_err(|_| unknown("settlement window"))?;
        Ok(Response::json(200, &self.window_by_id(id)?))
    }

    pub(super) fn window_by_id(&self, id: u64) -> Result<Value, Response> {
        let stored = self.service.store().get::<Windows>(&WindowKey { id }).map_err(unread)?;
        let row = self.counted(id, stored.ok_or_else(|| unknown("settlement window"))?.row)?;
        self.window_json(id, &row)
    }

    /// The counts of the open window are in the switch's state.
    fn counted(&self, id: u64, mut row: WindowRow) -> Result<WindowRow, Response> {
        let state = self.service.state().map_err(|error| failed(&error))?;
        if state.open_window == id {
            (row.in_flight, row.transfers) = (state.open_in_flight, state.open_transfers);
        }
        Ok(row)
    }

    fn window_json(&self, id: u64, row: &WindowRow) -> Result<Value, Response> {
        let directory = self.service.directory();
        let nets = self.service.store().lookup::<Nets>(Nets::BY_WINDOW, &id).map_err(unread)?;
        let content: Vec<Value> = nets
            .iter()
            .map(|found| {
                json!({
                    "participantId": found.key.participant,
                    "participant": directory.name(found.key.participant),
                    "currency": currency_text(found.key.currency),
                    "sent": format_amount(found.row.sent), "sentCount": found.row.sent_count,
                    "received": format_amount(found.row.received), "receivedCount": found.row.received_count,
                    "net": format_signed(signed(found.row.sent) - signed(found.row.received)),
                    "settlementId": (found.row.settlement != 0).then_some(found.row.settlement),
                })
            })
            .collect();
        Ok(json!({
            "id": id, "settlementWindowId": id, "state": WindowState::of(row).name(), "reason": row.reason,
            "createdDate": time(row.created), "changedDate": time(row.changed),
            "inFlight": row.in_flight, "transfers": row.transfers, "content": content,
        }))
    }

    async fn window_close(&self) -> Answer {
        let body: bodies::WindowClose = self.json()?;
        let id: u64 = self.param("id").parse().map_err(|_| unknown("settlement window"))?;
        if body.state != "CLOSED" {
            return Err(failed(&Refusal::Conflict("windows are closed, nothing else".to_owned()).into()));
        }
        let reason = bodies::remark(&body.reason).map_err(|error| failed(&error))?;
        let open = self.service.state().map_err(|error| failed(&error))?.open_window;
        if open != id {
            self.window_by_id(id)?;
            return Err(failed(&Refusal::Conflict("the window is not open".to_owned()).into()));
        }
        self.propose(200, Change::CloseWindow { id, reason }).await
    }

    async fn models(&self) -> Answer {
        let all: Vec<Value> = self
            .service
            .store()
            .all::<Models>()
            .map_err(unread)?
            .into_iter()
            .map(|found| {
                let row = found.row;
                json!({
                    "name": found.key.name,
                    "settlementGranularity": if row.gross { "GROSS" } else { "NET" },
                    "settlementInterchange": if row.gross { "BILATERAL" } else { "MULTILATERAL" },
                    "settlementDelay": if row.gross { "IMMEDIATE" } else { "DEFERRED" },
                    "currency": (row.currency != 0).then(|| currency_text(row.currency)),
                    "requireLiquidityCheck": row.require_liquidity_check,
                    "ledgerAccountType": "POSITION", "settlementAccountType": "SETTLEMENT",
                    "autoPositionReset": row.auto_position_reset, "isActive": row.active,
                })
            })
            .collect();
        Ok(Response::json(200, &all))
    }

    /// Sums over all accounts: each currency's debits and credits must be equal.
    async fn balances(&self) -> Answer {
        let accounts = self.service.store().all::<SwitchAccounts>().map_err(unread)?;
        let ids: Vec<u128> = accounts.iter().map(|found| found.key.ledger_id()).collect();
        let found = self.service.treasury.ledger().lookup(&ids).await;
        let mut sums: BTreeMap<u32, [i128; 5]> = BTreeMap::new();
        for (account, balance) in accounts.iter().zip(found) {
            let sum = sums.entry(account.key.currency).or_default();
            sum[0] += signed(balance.debits_posted);
            sum[1] += signed(balance.credits_posted);
            sum[2] += signed(balance.debits_pending);
            sum[3] += signed(balance.credits_pending);
            if account.key.kind == AccountKind::HubMultilateralSettlement as u8 {
                sum[4] = signed(balance.credits_posted) - signed(balance.debits_posted);
            }
        }
        let currencies: Vec<Value> = sums
            .iter()
            .map(|(currency, sum)| {
                json!({
                    "currency": currency_text(*currency),
                    "ledgerDebits": format_signed(sum[0]), "ledgerCredits": format_signed(sum[1]),
                    "pending": format_signed(sum[2]), "pendingCredits": format_signed(sum[3]),
                    "hubSettlement": format_signed(sum[4]),
                })
            })
            .collect();
        let store = self.service.store().clone();
        let count = move || {
            let mut states: BTreeMap<&'static str, u64> = BTreeMap::new();
            store.scan::<Transfers>(|found| {
                *states.entry(TransferStage::of(&found.row).name()).or_default() += 1;
                ControlFlow::Continue(())
            })?;
            Ok::<_, StoreError>(states)
        };
        let states = tokio::task::spawn_blocking(count).await.expect("counting does not panic");
        Ok(Response::json(200, &json!({ "currencies": currencies, "transfers": states.map_err(unread)? })))
    }

    async fn transfer(&self) -> Answer {
        let id = self.param("id");
        let key = TransferKey { id: parse_uuid(id).ok_or_else(|| unknown("transfer"))? };
        let stored = self.service.store().get::<Transfers>(&key).map_err(unread)?;
        let row = stored.ok_or_else(|| unknown("transfer"))?.row;
        let directory = self.service.directory();
        let steps: Vec<Value> = history(&row)
            .map(|step| {
                json!({
                    "state": step.state.name(), "time": format_ms(step.micros / 1000),
                    "reason": (step.reason != 0).then(|| step.reason.to_string()),
                })
            })
            .collect();
        Ok(Response::json(
            200,
            &json!({
                "transferId": id, "payerFsp": directory.name(row.payer), "payeeFsp": directory.name(row.payee),
                "amount": { "currency": currency_text(row.currency), "amount": format_amount(row.amount) },
                "state": TransferStage::of(&row).name(), "settlementWindowId": (row.window != 0).then_some(row.window),
                "expiration": format_ms(row.expiration), "error": row.error_text, "history": steps,
            }),
        ))
    }

    /// A participant's transfers of one window, or its movements of liquidity.
    async fn statement(&self) -> Answer {
        match self.request.query_text("window") {
            Some(window) => self.window_statement(window).await,
            None => self.movements(),
        }
    }

    /// A participant's movements of liquidity, latest last, and its sent and received amounts by window.
    fn movements(&self) -> Answer {
        let number = self.number(self.param("name"))?;
        let store = self.service.store();
        let encoded = batzen_store::Column::to_bytes(&number);
        let (from, to) = (Bound::Included(encoded.clone()), Bound::Included(encoded));
        let movements =
            store.range_bytes::<Movements>(Movements::BY_PARTICIPANT, from, to, STATEMENT_MAX, true);
        let mut movements: Vec<Value> = movements
            .map_err(unread)?
            .into_iter()
            .map(|found| {
                let row = found.row;
                json!({
                    "transferId": format_uuid(found.key.id), "time": time(row.created),
                    "kind": MovementKind::from_number(row.kind).map(MovementKind::name),
                    "state": MovementState::from_number(row.state).map(MovementState::name),
                    "currency": currency_text(row.currency), "amount": format_amount(row.amount),
                    "reason": row.reason, "externalReference": row.reference, "operator": row.operator,
                })
            })
            .collect();
        movements.reverse();
        let mut windows = Vec::new();
        for window in store.all::<Windows>().map_err(unread)? {
            let nets = store.lookup::<Nets>(Nets::BY_WINDOW, &window.key.id).map_err(unread)?;
            windows.extend(nets.iter().filter(|found| found.key.participant == number).map(|found| {
                json!({
                    "settlementWindowId": window.key.id, "state": WindowState::of(&window.row).name(),
                    "currency": currency_text(found.key.currency),
                    "sent": format_amount(found.row.sent), "sentCount": found.row.sent_count,
                    "received": format_amount(found.row.received), "receivedCount": found.row.received_count,
                    "net": format_signed(signed(found.row.sent) - signed(found.row.received)),
                })
            }));
        }
        let participant = self.param("name");
        Ok(Response::json(
            200,
            &json!({ "participant": participant, "movements": movements, "windows": windows }),
        ))
    }
}

fn account_json(key: &SwitchAccountKey, row: &SwitchAccountRow) -> Value {
    let kind = AccountKind::from_number(key.kind).map_or("", AccountKind::name);
    json!({
        "id": row.id, "currency": currency_text(key.currency), "ledgerAccountType": kind, "isActive": row.active,
    })
}
