//! A switch as operators start it: one operator alone changes nothing, two together do.

use serde_json::{Value, json};

use crate::crash::hub::Switch;

struct Scene {
    switch: Switch,
    _dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut switch = Switch::with(dir.path(), "FOUR_EYES = YES\nAPPROVAL_PATIENCE = 2 days\n");
        switch.start();
        Self { switch, _dir: dir }
    }

    /// Has the first operator try the change alone in every way, and then the second approve it. Returns the
    /// answer to the approval.
    fn change(&self, method: &str, path: &str, body: &Value) -> Value {
        let before = self.books();
        let (status, answer) = self.switch.hub.call(0, method, path, Some(body)).unwrap();
        assert_eq!((status, &answer["state"]), (202, &json!("OPEN")), "{path}: {answer}");
        let approval = format!("/approvals/{}", answer["approvalId"]);
        let (status, again) = self.switch.hub.call(0, method, path, Some(body)).unwrap();
        assert_eq!((status, &again), (202, &answer), "{path}: the same again");
        let approve = json!({"decision": "APPROVE"});
        let (status, answer) = self.switch.hub.call(0, "POST", &approval, Some(&approve)).unwrap();
        assert_eq!(
            (status, &answer["errorInformation"]["errorCode"]),
            (403, &json!("3000")),
            "{path}: {answer}"
        );
        assert_eq!(self.books(), before, "{path}: one operator alone has changed something");
        let (status, answer) = self.switch.hub.call(1, "POST", &approval, Some(&approve)).unwrap();
        assert_eq!(status, 200, "{path}: {answer}");
        assert_ne!(self.books(), before, "{path}: two operators have changed nothing");
        answer
    }

    /// Everything that operators change.
    fn books(&self) -> Vec<Value> {
        let participants = self.switch.hub.get("/participants").unwrap();
        let mut books = vec![participants.clone()];
        for path in
            ["/participants/limits", "/settlementModels", "/settlementWindows", "/settlements", "/balances"]
        {
            books.push(self.switch.hub.get(path).unwrap());
        }
        books.push(self.switch.hub.get("/participants/Hub/accounts").unwrap());
        for one in participants.as_array().unwrap() {
            let name = one["name"].as_str().unwrap();
            for part in ["accounts", "endpoints", "statement"] {
                books.push(self.switch.hub.get(&format!("/participants/{name}/{part}")).unwrap());
            }
        }
        books
    }
}

#[test]
fn every_change_takes_two_operators() {
    let mut scene = Scene::new();
    let post = |path: &str, body: Value| scene.change("POST", path, &body);
    post("/participants/Hub/accounts", json!({"currency": "EUR", "type": "HUB_RECONCILIATION"}));
    post("/settlementModels", json!({"name": "NET", "currency": "EUR", "autoPositionReset": true}));
    post("/participants", json!({"name": "alpha", "currency": "EUR"}));
    let endpoint = json!({"type": "FSPIOP_CALLBACK_URL", "value": "http://127.0.0.1:9/callbacks"});
    post("/participants/alpha/endpoints", endpoint);
    let limit = json!({"currency": "EUR", "limit": {"type": "NET_DEBIT_CAP", "value": "1000"}});
    post("/participants/alpha/initialPositionAndLimits", limit);
    let limit =
        json!({"currency": "EUR", "limit": {"type": "NET_DEBIT_CAP", "value": "900", "alarmPercentage": 70}});
    scene.change("PUT", "/participants/alpha/limits", &limit);
    scene.change("PUT", "/participants/alpha", &json!({"isActive": false}));

    let (path, funds_in) =
        scene.switch.hub.funds_request("alpha", "EUR", "recordFundsIn", "500", "deposit").unwrap();
    assert_eq!(post(&path, funds_in)["state"], "COMMITTED");
    assert_eq!(scene.switch.hub.liquidity("alpha", "EUR").unwrap(), 5_000_000);
    for (amount, action, state) in
        [("100", "recordFundsOutCommit", "COMMITTED"), ("50", "recordFundsOutAbort", "ABORTED")]
    {
        let request =
            scene.switch.hub.funds_request("alpha", "EUR", "recordFundsOutPrepareReserve", amount, "payout");
        let (path, out) = request.unwrap();
        let end = format!("{path}/transfers/{}", out["transferId"].as_str().unwrap());
        assert_eq!(post(&path, out)["state"], "RESERVED");
        assert_eq!(scene.change("PUT", &end, &json!({"action": action}))["state"], state);
    }
    assert_eq!(scene.switch.hub.liquidity("alpha", "EUR").unwrap(), 4_000_000);
    let account = scene.switch.hub.get("/participants/alpha/accounts").unwrap()[0]["id"].clone();
    scene.change("PUT", &format!("/participants/alpha/accounts/{account}"), &json!({"isActive": false}));
    assert_eq!(post("/settlementWindows/1", json!({"state": "CLOSED", "reason": "day"}))["state"], "CLOSED");

    // A proposal survives a kill, and so do decisions.
    let (path, funds_in) =
        scene.switch.hub.funds_request("alpha", "EUR", "recordFundsIn", "7", "deposit").unwrap();
    let (status, answer) = scene.switch.hub.call(0, "POST", &path, Some(&funds_in)).unwrap();
    assert_eq!(status, 202, "{answer}");
    let approval = format!("/approvals/{}", answer["approvalId"]);
    let before = scene.books();
    scene.switch.kill_9();
    scene.switch.start();
    assert_eq!(scene.books(), before);
    let shown = scene.switch.hub.get(&approval).unwrap();
    assert_eq!(
        (&shown["state"], &shown["currency"], &shown["amount"]),
        (&json!("OPEN"), &json!("EUR"), &json!("7"))
    );
    let approve = json!({"decision": "APPROVE"});
    assert_eq!(scene.switch.hub.call(0, "POST", &approval, Some(&approve)).unwrap().0, 403);
    assert_eq!(scene.switch.hub.call(1, "POST", &approval, Some(&approve)).unwrap().0, 200);
    assert_eq!(scene.switch.hub.liquidity("alpha", "EUR").unwrap(), 4_070_000);
    for approval in scene.switch.hub.get("/approvals").unwrap().as_array().unwrap() {
        assert_eq!(
            (&approval["proposedBy"], &approval["decidedBy"]),
            (&json!("one"), &json!("two")),
            "{approval}"
        );
    }
    scene.switch.terminate();
}
