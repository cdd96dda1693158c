//! Refusals and statements without proof: about denominations, change and recoups.

use super::*;

#[tokio::test]
async fn false_refusals_cost_no_coins() {
    // Refusals of payment and melt: unsigned, about another operation, and signed against the published
    // terms.
    for step in ["deposit", "melt"] {
        for (signed, code) in
            [(false, 1009), (true, 1009), (false, 1010), (false, 1005), (false, 1305), (false, 1006)]
        {
            let (world, wallet, merchant) = ready("KUDOS:8.01").await;
            if step == "melt" {
                wallet.pay(&request(&merchant, "KUDOS:3", 1)).await.unwrap();
            }
            let before = holdings(&wallet);
            let (signer, now) = (world.exchange.signer(), START);
            world.network.answer_instead(move |request| {
                if !request.url.ends_with(step) {
                    return None;
                }
                let h_denom = body(request)["denom_pub_hash"].as_str().unwrap().parse().unwrap();
                Some(if signed {
                    signer.unusable(&h_denom, &step.to_uppercase(), code, now)
                } else {
                    let status = if code == 1005 {
                        404
                    } else if code < 1020 {
                        410
                    } else {
                        400
                    };
                    error(status, code, &json!({ "h_denom_pub": h_denom }))
                })
            });
            if step == "deposit" && !matches!(code, 1005 | 1009 | 1010) {
                continue; // Such a refusal returns the coin.
            }
            if step == "deposit" {
                is_disputed(wallet.pay(&request(&merchant, "KUDOS:3", 1)).await, &code.to_string());
            } else {
                wallet.run_pending().await.unwrap();
            }
            check_disputed(&wallet, before, "");
            check_recovered(&world, &wallet).await;
        }
    }
}

#[tokio::test]
async fn false_refusals_cost_no_change() {
    for (status, code) in [(410, 1009), (410, 1010), (404, 1355), (409, 1353)] {
        let (world, wallet, before) = with_change().await;
        world.network.answer_instead(move |request| {
            request.url.ends_with("/reveal").then(|| error(status, code, &json!({})))
        });
        wallet.run_pending().await.unwrap();
        check_disputed(&wallet, before, "");
        check_recovered(&world, &wallet).await;
    }
}

/// Revokes the denomination of the one coin in the wallet.
async fn revoke(world: &World, wallet: &Wallet) {
    revoke_coins(world, wallet).await;
    wallet.add_exchange(EXCHANGE).await.unwrap();
}

async fn revoke_coins(world: &World, wallet: &Wallet) {
    let h_denom_pub = wallet.coins()[0].h_denom_pub;
    world.exchange.revoke(|denom| denom.h_denom_pub == h_denom_pub).await;
}

#[tokio::test]
async fn recoups_are_believed_only_with_the_right_owner_and_proof() {
    let other = EddsaPrivateKey::generate().public_key();
    for lie in ["owner", "own signature", "expired", "not found"] {
        let (world, wallet, _) = ready("KUDOS:8.01").await;
        let before = holdings(&wallet);
        world.network.answer_instead(move |request| {
            if !request.url.ends_with("/recoup") {
                return None;
            }
            let sent = body(request);
            Some(match lie {
                "owner" => with_json(
                    &HttpResponse { status: 200, ..HttpResponse::default() },
                    &json!({ "reserve_pub": other }),
                ),
                "own signature" => {
                    let item = json!({
                        "type": "RECOUP", "amount": "KUDOS:8", "exchange_sig": sent["coin_sig"],
                        "exchange_pub": other, "reserve_pub": other, "coin_sig": sent["coin_sig"],
                        "coin_blind": sent["coin_blind_key_secret"], "timestamp": { "t_s": 1_700_000_000 },
                    });
                    overspent(request, &[item])
                }
                "expired" => error(410, 1009, &json!({ "h_denom_pub": sent["denom_pub_hash"] })),
                _ => error(404, 1551, &json!({})),
            })
        });
        revoke(&world, &wallet).await;
        wallet.run_pending().await.unwrap();
        check_disputed(&wallet, before, "");
        check_recovered(&world, &wallet).await;
        assert!(available(&wallet).money > amount("KUDOS:7.6").money);
    }
}

/// The answer to a recoup is not signed. The wallet keeps asking until the reserve's history shows the
/// recoup, and then withdraws the money from there.
#[tokio::test]
async fn a_recoup_is_repeated_until_the_history_shows_it() {
    let (world, wallet, _) = ready("KUDOS:8.01").await;
    let before = world.exchange.recoups();
    let owner = wallet.transactions(true).unwrap()[0].reserve_pub.clone().unwrap();
    world.network.answer_instead(move |request| {
        let is_recoup = request.url.ends_with("/recoup");
        let done = HttpResponse { status: 200, ..HttpResponse::default() };
        is_recoup.then(|| with_json(&done, &json!({ "reserve_pub": owner })))
    });
    revoke(&world, &wallet).await;
    for _ in 0..3 {
        wallet.run_pending().await.unwrap();
        let line = wallet.transactions(true).unwrap().into_iter().find(|line| line.kind == "recoup").unwrap();
        assert_eq!(line.status, Status::Pending);
        assert!(line.message.unwrap().contains("its history does not show it"));
    }
    assert_eq!(world.exchange.recoups(), before, "nothing was paid back yet");
    check_recovered(&world, &wallet).await;
    assert!(available(&wallet).money > amount("KUDOS:7.6").money);
}

#[tokio::test]
async fn a_revocation_is_final() {
    // The exchange tells melts that the denomination is revoked, and tells recoups that it is not. The wallet
    // must not loop.
    let (world, wallet, before) = with_change().await;
    let signer = world.exchange.signer();
    world.network.answer_instead(move |request| {
        let (oper, code) = match request.url.rsplit('/').next() {
            Some("melt") => ("MELT", 1010),
            Some("recoup") => ("RECOUP", 1555),
            _ => return None,
        };
        let h_denom = body(request)["denom_pub_hash"].as_str().unwrap().parse().unwrap();
        Some(signer.unusable(&h_denom, oper, code, START))
    });
    wallet.run_pending().await.unwrap();
    check_disputed(&wallet, before, "signed earlier that it is");
    revoke_coins(&world, &wallet).await;
    check_recovered(&world, &wallet).await;
}

#[tokio::test]
async fn a_recoup_by_a_copy_is_fetched_from_the_reserve() {
    // A copy recoups the coin, so that this wallet's melt fails with a valid proof.
    let (world, wallet, _) = with_change().await;
    let copy = copy_of(&wallet, &world, 9);
    // The copy completes the recoup and is then lost.
    world.network.answer_instead(|request| {
        let about_reserve = request.url.contains("/reserves/");
        about_reserve.then(|| HttpResponse { status: 503, ..HttpResponse::default() })
    });
    revoke(&world, &copy).await;
    copy.run_pending().await.unwrap();
    world.network.be_honest();
    wallet.run_pending().await.unwrap();
    check_recovered(&world, &wallet).await;
    assert!(wallet.evidence().is_empty());
    assert!(available(&wallet).money > amount("KUDOS:4.5").money);
}
