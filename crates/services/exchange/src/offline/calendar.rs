//! The step `calendar`: what ends when, and by when it must be signed again.

use std::fmt::Write as _;

use batzen_http::client::{Client, ClientError};
use batzen_http::http_date;
use batzen_protocol::api::exchange::{FutureKeys, KeysResponse, WireResponse};
use batzen_protocol::api::offline::OfflineOperation;
use batzen_protocol::{ErrorCode, Timestamp};
use serde_json::json;

use crate::calendar::{Calendar, Coverage, Kind, Period, denomination_item};
use crate::rules::transfers::payto_method;

const SECONDS_PER_DAY: u64 = 86_400;

/// The calendar of the documents: keys that need a signature, and fees.
pub(super) fn of_documents(operations: &[OfflineOperation]) -> Calendar {
    let mut periods = Vec::new();
    for operation in operations {
        match operation {
            OfflineOperation::InputKeys(keys) => periods.extend(future_periods(keys)),
            OfflineOperation::SetWireFee(fee) => periods.push(Period {
                kind: Kind::WireFee,
                item: fee.wire_method.clone(),
                start: fee.start_time,
                end: fee.end_time,
                is_signed: true,
            }),
            OfflineOperation::SetGlobalFee(fee) => periods.push(Period {
                kind: Kind::GlobalFee,
                item: String::new(),
                start: fee.start_time,
                end: fee.end_time,
                is_signed: true,
            }),
            _ => {}
        }
    }
    Calendar::new(periods)
}

/// The calendar of an exchange: what it publishes, and the keys that wait for a signature.
///
/// # Errors
/// When the exchange cannot be reached, or is still creating keys.
pub(super) async fn of_exchange(client: &Client, base_url: &str) -> Result<Calendar, ClientError> {
    let future = client.get_json(format!("{base_url}management/keys")).await?;
    if future.code() == Some(ErrorCode::EXCHANGE_GENERIC_KEYS_MISSING) {
        // It is still creating keys, so what waits for a signature is not known.
        future.expect(&[200])?;
    }
    let mut periods = match future.status {
        200 => future_periods(&future.json::<FutureKeys>()?),
        _ => Vec::new(),
    };
    let mut methods = Vec::new();
    // Neither exists before the first signatures.
    let keys = client.get_json(format!("{base_url}keys")).await?;
    if keys.status == 200 {
        periods.extend(published_periods(&keys.json()?));
    }
    let wire = client.get_json(format!("{base_url}wire")).await?;
    if wire.status == 200 {
        let wire: WireResponse = wire.json()?;
        methods = wire
            .accounts
            .iter()
            .filter_map(|account| payto_method(&account.payto_uri))
            .map(str::to_owned)
            .collect();
        for (method, fees) in wire.fees {
            periods.extend(fees.into_iter().map(|fee| Period {
                kind: Kind::WireFee,
                item: method.clone(),
                start: fee.start_date,
                end: fee.end_date,
                is_signed: true,
            }));
        }
    }
    let calendar = Calendar::new(periods).require(Kind::SigningKey, "").require(Kind::GlobalFee, "");
    Ok(methods.iter().fold(calendar, |calendar, method| calendar.require(Kind::WireFee, method)))
}

fn future_periods(keys: &FutureKeys) -> Vec<Period> {
    let denominations = keys.future_denoms.iter().map(|denom| Period {
        kind: Kind::Denomination,
        item: denomination_item(denom.value, denom.denom_pub.cipher()),
        start: denom.stamp_start,
        end: denom.stamp_expire_withdraw,
        is_signed: false,
    });
    let signing = keys.future_signkeys.iter().map(|key| Period {
        kind: Kind::SigningKey,
        item: String::new(),
        start: key.stamp_start,
        end: key.stamp_expire,
        is_signed: false,
    });
    denominations.chain(signing).collect()
}

fn published_periods(keys: &KeysResponse) -> Vec<Period> {
    let denominations = keys.denoms.iter().map(|denom| Period {
        kind: Kind::Denomination,
        item: denomination_item(denom.value, denom.denom_pub.cipher()),
        start: denom.stamp_start,
        end: denom.stamp_expire_withdraw,
        is_signed: true,
    });
    let signing = keys.signkeys.iter().map(|key| Period {
        kind: Kind::SigningKey,
        item: String::new(),
        start: key.stamp_start,
        end: key.stamp_expire,
        is_signed: true,
    });
    let fees = keys.global_fees.iter().map(|fee| Period {
        kind: Kind::GlobalFee,
        item: String::new(),
        start: fee.start_date,
        end: fee.end_date,
        is_signed: true,
    });
    denominations.chain(signing).chain(fees).collect()
}

/// The calendar as a JSON object. Times are seconds since 1970; `null` is never, or nothing in force.
pub(super) fn to_json(calendar: &Calendar, now: Timestamp) -> String {
    let coverage: Vec<_> = calendar
        .coverage(now)
        .iter()
        .map(|row| {
            let gap =
                row.gap.map(|(start, end)| json!({ "start_s": start.as_secs(), "end_s": end.as_secs() }));
            json!({
                "kind": row.kind.name(),
                "item": row.item,
                "covered_until_s": row.covered_until.and_then(Timestamp::as_secs),
                "seconds_left": row.seconds_left(now),
                "sign_by_s": row.sign_by(now).as_secs(),
                "gap": gap,
                "unsigned": row.unsigned,
            })
        })
        .collect();
    let periods: Vec<_> = calendar
        .periods(now)
        .map(|period| {
            json!({
                "kind": period.kind.name(),
                "item": period.item,
                "start_s": period.start.as_secs(),
                "end_s": period.end.as_secs(),
                "signed": period.is_signed,
            })
        })
        .collect();
    format!("{:#}\n", json!({ "now_s": now.as_secs(), "coverage": coverage, "periods": periods }))
}

/// The calendar as two tables: what must be signed by when, and what ends when.
pub(super) fn to_text(calendar: &Calendar, now: Timestamp) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:<14}{:<20}{:<31}{:>9}{:>10}",
        "kind", "item", "sign the next by", "days left", "unsigned"
    );
    for row in calendar.coverage(now) {
        let _ = writeln!(
            text,
            "{:<14}{:<20}{:<31}{:>9}{:>10}{}",
            row.kind.name(),
            row.item,
            sign_by(&row),
            row.seconds_left(now) / SECONDS_PER_DAY,
            row.unsigned,
            row.gap.map_or_else(String::new, |(start, end)| {
                format!("  GAP from {} to {}", http_date(start), http_date(end))
            })
        );
    }
    let _ = writeln!(text, "\n{:<14}{:<20}{:<31}{:<31}signed", "kind", "item", "start", "end");
    for period in calendar.periods(now) {
        let _ = writeln!(
            text,
            "{:<14}{:<20}{:<31}{:<31}{}",
            period.kind.name(),
            period.item,
            http_date(period.start),
            http_date(period.end),
            if period.is_signed { "yes" } else { "NO" }
        );
    }
    text
}

fn sign_by(row: &Coverage) -> String {
    row.covered_until.map_or_else(|| "now: none is in force".to_owned(), http_date)
}
