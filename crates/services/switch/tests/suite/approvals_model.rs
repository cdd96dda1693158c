//! The rules of approvals against an obviously correct model, with random operators who propose, decide and
//! let time pass.
use std::collections::BTreeMap;
use std::sync::Arc;

use batzen_engine::Batcher;
use batzen_protocol::Timestamp;
use batzen_store::Store;
use batzen_store::memory::MemoryBackend;
use batzen_switch::rules::Change;
use batzen_switch::rules::approvals::{Decision, OPEN_MAX};
use batzen_switch::rules::{
    ApprovalState, CloseWindow, Command, Consequences, Decide, ExpireProposal, Open, Propose, Refusal, Stamp,
    SwitchRules,
};
use batzen_tables::switch::{ApprovalKey, Approvals, OpenApprovals, SwitchStateKey, SwitchStates};
use proptest::prelude::*;

/// Times in rows are whole seconds.
const SECOND_MICROS: u64 = 1_000_000;
const PATIENCE_MICROS: u64 = 100 * SECOND_MICROS;

#[derive(Clone, Debug)]
enum Act {
    /// About one of a few subjects, by one of a few operators; one of two changes.
    Propose { subject: u8, operator: u8, change: u8 },
    /// A decision on one of the proposals so far.
    Decide { pick: u8, operator: u8, to: u8 },
    /// This many seconds pass.
    Wait(u64),
    /// The switch ends expired proposals.
    Tidy,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0..3_u8, 0..3_u8, 0..2_u8).prop_map(|(subject, operator, change)| Act::Propose {
            subject,
            operator,
            change
        }),
        (any::<u8>(), 0..3_u8, 0..5_u8).prop_map(|(pick, operator, to)| Act::Decide { pick, operator, to }),
        (1..80_u64).prop_map(Act::Wait),
        Just(Act::Tidy),
    ];
    prop::collection::vec(act, 1..60)
}

struct Switch {
    store: Store,
    micros: u64,
}

impl Switch {
    fn new() -> Self {
        let store = Store::new(MemoryBackend::new());
        let mut switch = Self { store, micros: 1_800_000_000_000_000 };
        switch.ask(Open).unwrap();
        switch
    }

    fn ask(&mut self, command: impl Into<Command>) -> Result<Consequences, Refusal> {
        let micros = self.micros;
        let rules = SwitchRules { stamp: Stamp { number: 0, micros }, ..SwitchRules::default() };
        let batcher = Batcher::new(Arc::new(rules), self.store.clone());
        let verdicts = batcher.run(&[command.into()], &move || Timestamp::from_micros(micros)).unwrap();
        verdicts.into_iter().next().unwrap()
    }

    fn next(&self) -> u64 {
        self.store.get::<SwitchStates>(&SwitchStateKey::ONLY).unwrap().unwrap().row.next_approval
    }

    fn window(&self) -> u64 {
        self.store.get::<SwitchStates>(&SwitchStateKey::ONLY).unwrap().unwrap().row.open_window
    }
}

/// A proposal in the model.
#[derive(Clone, Debug)]
struct Known {
    subject: u8,
    change: u8,
    proposer: u8,
    expires: u64,
    state: ApprovalState,
    is_finished: bool,
    decider: Option<u8>,
}

fn name(operator: u8) -> String {
    format!("operator {operator}")
}

fn propose(switch: &mut Switch, known: &mut BTreeMap<u64, Known>, (subject, operator, change): (u8, u8, u8)) {
    let id = switch.next();
    let asked = Propose {
        id,
        subject: [subject; 32],
        hash: [change; 32],
        change: format!("change {change} of {subject}"),
        operator: name(operator),
        patience_micros: PATIENCE_MICROS,
    };
    let answer = switch.ask(asked).map(|outcome| outcome.number);
    let open = known.iter().find(|(_, one)| one.subject == subject && !one.is_finished);
    match open {
        Some((number, one)) if switch.micros < one.expires => {
            if one.proposer == operator && one.change == change {
                assert_eq!(answer, Ok(*number), "the same proposal");
            } else {
                assert!(matches!(answer, Err(Refusal::Conflict(_))), "{answer:?}");
            }
        }
        Some(_) => assert_eq!(answer, Err(Refusal::Overtaken), "it is ended first"),
        None => {
            assert_eq!(answer, Ok(id));
            let expires = switch.micros + PATIENCE_MICROS;
            let state = ApprovalState::Open;
            let one = Known {
                subject,
                change,
                proposer: operator,
                expires,
                state,
                is_finished: false,
                decider: None,
            };
            known.insert(id, one);
        }
    }
}

/// The requested states: approved and carried out later, approved with its effect, failed, rejected,
/// withdrawn.
fn decide(switch: &mut Switch, one: &mut Known, id: u64, operator: u8, to: u8) {
    let window = switch.window();
    let (state, result, effect) = match to {
        0 => (ApprovalState::Approved, "", None),
        1 => (ApprovalState::Approved, "done", Some(CloseWindow { id: window, reason: String::new() })),
        2 => (ApprovalState::Failed, "it does not fit", None),
        3 => (ApprovalState::Rejected, "no", None),
        _ => (ApprovalState::Withdrawn, "", None),
    };
    let has_effect = effect.is_some();
    let (subject, result) = ([one.subject; 32], result.to_owned());
    let decision = Decision { id, subject, operator: name(operator), to: state, result };
    let answer = switch.ask(Decide { decision, effect: effect.map(|close| Box::new(close.into())) });
    let may =
        if state == ApprovalState::Withdrawn { one.proposer == operator } else { one.proposer != operator };
    let is_open = one.state == ApprovalState::Open && switch.micros < one.expires;
    let is_continued = one.state == ApprovalState::Approved
        && !one.is_finished
        && one.decider == Some(operator)
        && matches!(state, ApprovalState::Approved | ApprovalState::Failed);
    if may && (is_open || is_continued) {
        answer.unwrap();
        (one.state, one.decider) = (state, Some(operator));
        one.is_finished = to != 0;
        assert_eq!(switch.window(), window + u64::from(has_effect));
    } else {
        let expected = if may { "conflict" } else { "forbidden" };
        match answer.unwrap_err() {
            Refusal::Conflict(_) => assert_eq!(expected, "conflict"),
            Refusal::Forbidden(_) => assert_eq!(expected, "forbidden"),
            other => panic!("{other:?}"),
        }
        assert_eq!(switch.window(), window, "nothing that was refused takes effect");
    }
}

fn compare(switch: &Switch, known: &BTreeMap<u64, Known>) {
    for (id, one) in known {
        let row = switch.store.get::<Approvals>(&ApprovalKey { id: *id }).unwrap().unwrap().row;
        assert_eq!((ApprovalState::of(&row), &row.proposed_by), (one.state, &name(one.proposer)));
        assert_eq!(row.decided_by, one.decider.map(name).unwrap_or_default());
        if matches!(one.state, ApprovalState::Approved | ApprovalState::Failed | ApprovalState::Rejected) {
            assert_ne!(row.proposed_by, row.decided_by, "two operators");
        }
    }
    let mut open: Vec<u64> =
        switch.store.all::<OpenApprovals>().unwrap().iter().map(|found| found.row.approval).collect();
    open.sort_unstable();
    let expected: Vec<u64> = known.iter().filter(|(_, one)| !one.is_finished).map(|(id, _)| *id).collect();
    assert_eq!(open, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn approvals_go_by_the_model(acts in acts()) {
        let mut switch = Switch::new();
        let mut known: BTreeMap<u64, Known> = BTreeMap::new();
        for act in acts {
            match act {
                Act::Propose { subject, operator, change } => {
                    propose(&mut switch, &mut known, (subject, operator, change));
                }
                Act::Decide { pick, operator, to } => {
                    let count = known.len().max(1);
                    let picked = known.iter_mut().nth(usize::from(pick) % count);
                    if let Some((id, one)) = picked {
                        decide(&mut switch, one, *id, operator, to);
                    }
                }
                Act::Wait(seconds) => switch.micros += seconds * SECOND_MICROS,
                Act::Tidy => {
                    for (id, one) in &mut known {
                        switch.ask(ExpireProposal { id: *id, subject: [one.subject; 32] }).unwrap();
                        if one.state == ApprovalState::Open && switch.micros >= one.expires {
                            (one.state, one.is_finished) = (ApprovalState::Expired, true);
                        }
                    }
                }
            }
            compare(&switch, &known);
        }
    }
}

#[test]
fn an_effect_that_is_refused_leaves_the_proposal_open() {
    let mut switch = Switch::new();
    let (subject, operator) = ([1; 32], name(1));
    let propose = Propose {
        id: 1,
        subject,
        hash: subject,
        change: String::new(),
        operator,
        patience_micros: PATIENCE_MICROS,
    };
    switch.ask(propose).unwrap();
    let to = ApprovalState::Approved;
    let decision = Decision { id: 1, subject, operator: name(2), to, result: "done".to_owned() };
    let effect = Some(Box::new(CloseWindow { id: 7, reason: String::new() }.into()));
    let answer = switch.ask(Decide { decision, effect });
    assert!(matches!(answer, Err(Refusal::NotDone(_))), "{answer:?}");
    let row = switch.store.get::<Approvals>(&ApprovalKey { id: 1 }).unwrap().unwrap().row;
    assert_eq!(ApprovalState::of(&row), ApprovalState::Open);
}

#[test]
fn open_proposals_are_bounded() {
    let mut switch = Switch::new();
    for number in 0..=OPEN_MAX {
        let mut subject = [0; 32];
        subject[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let propose = Propose {
            id: switch.next(),
            subject,
            hash: subject,
            change: String::new(),
            operator: name(1),
            patience_micros: PATIENCE_MICROS,
        };
        let answer = switch.ask(propose);
        assert_eq!(answer.is_ok(), number < OPEN_MAX, "{number}: {answer:?}");
    }
}

#[test]
fn stored_changes_are_read() {
    // As the first version wrote them.
    for text in [
        r#"{"change":"accounts","name":null,"currency":4543826}"#,
        r#"{"change":"activate","name":"fsp1","active":true}"#,
        r#"{"change":"activateAccount","name":"fsp1","currency":4543826,"kind":1,"active":false}"#,
        r#"{"change":"limit","name":"fsp1","currency":4543826,"ndc":"400","alarmPercentage":50,"initial":false}"#,
        r#"{"change":"endpoint","name":"fsp1","endpoint":"FSPIOP_CALLBACK_URL","url":"http://127.0.0.1/"}"#,
        r#"{"change":"model","name":"NET","currency":0,"gross":false,"requireLiquidityCheck":true,"autoPositionReset":true,"active":true}"#,
        r#"{"change":"fundsIn","name":"fsp1","currency":4543826,"id":"b51ec534-ee48-4575-b6a9-ead2955b8069","amount":"1.5","reason":"","reference":"x"}"#,
        r#"{"change":"closeWindow","id":1,"reason":""}"#,
        r#"{"change":"settle","model":"NET","reason":"","windows":[1,2]}"#,
        r#"{"change":"stepSettlement","settlement":1,"steps":[{"participant":1,"name":"fsp1","currency":4543826,"account":3,"state":"SETTLED","reason":"","reference":""}]}"#,
    ] {
        let change: Change = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(serde_json::to_string(&change).unwrap(), text);
    }
}
