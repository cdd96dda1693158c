//! `POST /coins/$COIN_PUB/melt`: the first half of changing a coin.

use batzen_crypto::{CsNonce, ShortHash};
use batzen_engine::Entropy;
use batzen_http::{Request, Response};
use batzen_protocol::ErrorCode;
use batzen_protocol::api::exchange::{MeltConfirmation, MeltRequest};
use batzen_protocol::limits::SMALL_BODY_BYTES_MAX;
use batzen_protocol::signatures::{ExchangeConfirmMelt, WalletCoinMelt};

use super::check::Checked;
use super::check::{self, Presented, Window};
use super::response::DenomOperation;
use super::signing;
use super::{Table, body, endpoint, error, money, path_value};
use crate::app::Exchange;
use crate::crypto::Check;
use crate::rules::Melt;

pub(super) fn routes(table: Table) -> Table {
    table.post("/coins/:coin_pub/melt", SMALL_BODY_BYTES_MAX, "melt", endpoint!(melt))
}

async fn melt(app: &Exchange, request: &mut Request) -> Checked<Response> {
    let coin_pub = path_value(request, "coin_pub", ErrorCode::EXCHANGE_GENERIC_COINS_INVALID_COIN_PUB)?;
    let body: MeltRequest = body(request)?;
    let amount = money::<MeltRequest>(app, &body.value_with_fee, "value_with_fee")?;
    let keys = app.keys();
    // Coins of revoked or expired denominations may be zombies: the rules decide by the coin's row.
    let denom = check::find_denomination(app, &keys, &body.denom_pub_hash).await?;
    check::check_window(app, &keys, denom, Window::Melt, DenomOperation::Melt, app.core.now()).await?;
    if amount < denom.fee_refresh {
        return Err(error(ErrorCode::EXCHANGE_MELT_FEES_EXCEED_CONTRIBUTION, ""));
    }
    check::check_cipher(denom, check::signature_cipher(&body.denom_sig))?;
    let h_age = check::age_hash(body.age_commitment_hash);
    let message = WalletCoinMelt {
        refresh_commitment: body.rc,
        h_denom_pub: body.denom_pub_hash,
        h_age_commitment: h_age.unwrap_or(ShortHash::from_bytes([0; 32])),
        amount_with_fee: body.value_with_fee,
        melt_fee: denom.fee_refresh.of(app.core.config.currency),
    };
    let coin = Presented {
        coin_pub,
        denom: denom.serial,
        denom_pub: denom.public.clone(),
        h_age,
        denom_sig: body.denom_sig,
    };
    let coin_sig = body.confirm_sig;
    let checks = vec![coin.check(), Check::eddsa(coin_pub, &message, coin_sig)];
    let verdicts = signing::checked(app, checks).await?;
    if !verdicts[0] {
        return Err(error(ErrorCode::EXCHANGE_DENOMINATION_SIGNATURE_INVALID, ""));
    }
    if !verdicts[1] {
        return Err(error(ErrorCode::EXCHANGE_MELT_COIN_SIGNATURE_INVALID, ""));
    }
    let command = Melt {
        coin: coin.into_rule(),
        amount,
        rc: body.rc,
        coin_sig,
        noreveal_index: draw_noreveal_index(app.core.entropy.as_ref()),
        rms: body.rms.map(|rms| CsNonce::from_bytes(*rms.as_bytes())),
    };
    let melted = app.decide(&keys, DenomOperation::Melt, command, false).await?;
    if !melted.repeated {
        app.core.metrics.success.melt.inc();
    }
    let noreveal_index = u32::from(melted.noreveal_index);
    let confirmation = ExchangeConfirmMelt { refresh_commitment: body.rc, noreveal_index };
    let (exchange_pub, exchange_sig) = signing::sign_one(app, confirmation).await?;
    let body = MeltConfirmation { noreveal_index, exchange_sig, exchange_pub, refresh_base_url: None };
    Ok(Response::json(200, &body))
}

/// 0, 1 or 2, each equally likely: bytes from 255 up are drawn again.
fn draw_noreveal_index(entropy: &dyn Entropy) -> u8 {
    loop {
        let mut byte = [0];
        entropy.fill(&mut byte);
        if byte[0] < u8::MAX {
            return byte[0] % 3;
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_indexes_are_drawn() {
        let mut seen = [0_u32; 3];
        for _ in 0..3_000 {
            seen[usize::from(super::draw_noreveal_index(&batzen_crypto::fill_random))] += 1;
        }
        // Six standard deviations around 1,000.
        assert!(seen.iter().all(|count| (845..=1_155).contains(count)), "{seen:?}");
    }
}
