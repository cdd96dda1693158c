//! Compares reports with golden files (`BATZEN_UPDATE_GOLDEN=1` rewrites them), checks the element order that
//! the message definitions require, and parses the reports again.

use std::collections::BTreeMap;
use std::path::PathBuf;

use batzen_switch::reports::camt053::{self, Window};
use batzen_switch::reports::data::{Agent, Currency, Instant, Net, Settlement};
use batzen_switch::reports::head001::{self, Header};
use batzen_switch::reports::pacs009::Leg;
use batzen_switch::reports::tables::{self, Entry, EntryKind, Statement};
use batzen_switch::reports::transfer::{PACS002, PACS008, Status, Transfer};
use batzen_switch::reports::{ReportError, camt054, pacs009};
use quick_xml::Reader;
use quick_xml::events::Event;

fn agent(name: &str, bic: Option<&str>) -> Agent {
    Agent { name: name.to_owned(), bic: bic.map(str::to_owned), account: format!("ACC-{name}") }
}

fn net(name: &str, bic: Option<&str>, sent: (u64, u128), received: (u64, u128)) -> Net {
    Net {
        participant: agent(name, bic),
        sent_count: sent.0,
        sent: sent.1,
        received_count: received.0,
        received: received.1,
        net: i128::try_from(sent.1).unwrap() - i128::try_from(received.1).unwrap(),
    }
}

/// Four participants: one owes much, one owes little, one is owed money, one is even. One name needs escaping
/// and quoting.
fn settlement() -> Settlement {
    Settlement {
        id: "7".to_owned(),
        currency: Currency::new("USD").unwrap(),
        created: Instant(1_795_000_000_123),
        windows: vec![3, 4],
        hub: agent("HUB", Some("BATZCHZZXXX")),
        nets: vec![
            net("alpha", Some("ALPHKE22"), (3, 10_005_000), (1, 5_000)),
            net("Beta & \"Sons\", <Ltd>", None, (1, 20_000), (2, 10_000)),
            net("gamma", None, (1, 5_000), (2, 10_015_000)),
            net("delta", None, (1, 100), (1, 100)),
        ],
    }
}

fn golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BATZEN_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(text, expected, "{name}");
}

/// An element of a parsed document.
#[derive(Debug, Default)]
struct Node {
    name: String,
    attributes: BTreeMap<String, String>,
    text: String,
    children: Vec<Node>,
}

impl Node {
    fn parse(document: &str) -> Self {
        let mut reader = Reader::from_str(document);
        let mut open = vec![Self::default()];
        loop {
            match reader.read_event().unwrap() {
                Event::Start(start) => {
                    let attributes = start.attributes().map(|attribute| {
                        let attribute = attribute.unwrap();
                        (attribute.key.as_ref().to_owned(), attribute.value.into_owned())
                    });
                    let name = start.name().as_ref().to_owned();
                    open.push(Self { name, attributes: attributes.collect(), ..Self::default() });
                }
                Event::End(_) => {
                    let mut node = open.pop().unwrap();
                    if !node.children.is_empty() {
                        assert!(node.text.trim().is_empty(), "{}: text between elements", node.name);
                        node.text.clear();
                    }
                    open.last_mut().unwrap().children.push(node);
                }
                Event::Text(text) => open.last_mut().unwrap().text.push_str(text.as_ref()),
                Event::GeneralRef(name) => {
                    let character = quick_xml::escape::resolve_predefined_entity(name.as_ref()).unwrap();
                    open.last_mut().unwrap().text.push_str(character);
                }
                Event::Eof => break,
                _ => {}
            }
        }
        assert_eq!(open.len(), 1, "every element is closed");
        open.pop().unwrap().children.pop().unwrap()
    }

    fn all(&self, path: &str) -> Vec<&Self> {
        path.split('/').fold(vec![self], |nodes, name| {
            nodes.iter().flat_map(|node| &node.children).filter(|child| child.name == name).collect()
        })
    }

    fn one(&self, path: &str) -> &Self {
        let found = self.all(path);
        assert_eq!(found.len(), 1, "{path}");
        found[0]
    }
}

/// The children of an element in the order of the message definition. A name with `!` is mandatory.
type Order = (&'static str, &'static str);

const PACS009: [Order; 13] = [
    ("Document", "FICdtTrf!"),
    ("FICdtTrf", "GrpHdr! CdtTrfTxInf! SplmtryData"),
    (
        "GrpHdr",
        "MsgId! CreDtTm! BtchBookg NbOfTxs! CtrlSum TtlIntrBkSttlmAmt IntrBkSttlmDt SttlmInf! PmtTpInf InstgAgt InstdAgt",
    ),
    ("SttlmInf", "SttlmMtd! SttlmAcct ClrSys InstgRmbrsmntAgt InstdRmbrsmntAgt"),
    ("ClrSys", "Cd Prtry"),
    (
        "CdtTrfTxInf",
        "PmtId! PmtTpInf IntrBkSttlmAmt! IntrBkSttlmDt SttlmPrty SttlmTmIndctn SttlmTmReq PrvsInstgAgt1 InstgAgt \
         InstdAgt IntrmyAgt1 UltmtDbtr Dbtr! DbtrAcct DbtrAgt DbtrAgtAcct CdtrAgt CdtrAgtAcct Cdtr! CdtrAcct UltmtCdtr \
         InstrForCdtrAgt InstrForNxtAgt Purp RmtInf UndrlygCstmrCdtTrf SplmtryData",
    ),
    ("PmtId", "InstrId EndToEndId! TxId UETR ClrSysRef"),
    ("Dbtr", "FinInstnId! BrnchId"),
    ("Cdtr", "FinInstnId! BrnchId"),
    ("FinInstnId", "BICFI ClrSysMmbId LEI Nm PstlAdr Othr"),
    ("ClrSysMmbId", "ClrSysId MmbId!"),
    ("DbtrAcct", "Id! Tp Ccy Nm Prxy"),
    ("CdtrAcct", "Id! Tp Ccy Nm Prxy"),
];

const CAMT054: [Order; 16] = [
    ("Document", "BkToCstmrDbtCdtNtfctn!"),
    ("BkToCstmrDbtCdtNtfctn", "GrpHdr! Ntfctn! SplmtryData"),
    ("GrpHdr", "MsgId! CreDtTm! MsgRcpt MsgPgntn OrgnlBizQry AddtlInf"),
    (
        "Ntfctn",
        "Id! NtfctnPgntn ElctrncSeqNb RptgSeq LglSeqNb CreDtTm FrToDt CpyDplctInd RptgSrc Acct! RltdAcct Intrst \
         TxsSummry Ntry AddtlNtfctnInf",
    ),
    ("Acct", "Id! Tp Ccy Nm Prxy Ownr Svcr"),
    ("TxsSummry", "TtlNtries TtlCdtNtries TtlDbtNtries TtlNtriesPerBkTxCd"),
    ("TtlCdtNtries", "NbOfNtries Sum"),
    ("TtlDbtNtries", "NbOfNtries Sum"),
    (
        "Ntry",
        "NtryRef Amt! CdtDbtInd! RvslInd Sts! BookgDt ValDt AcctSvcrRef Avlbty BkTxCd! ComssnWvrInd AddtlInfInd AmtDtls \
         Chrgs TechInptChanl Intrst CardTx NtryDtls AddtlNtryInf",
    ),
    ("Sts", "Cd Prtry"),
    ("BkTxCd", "Domn Prtry"),
    ("Domn", "Cd! Fmly!"),
    ("Fmly", "Cd! SubFmlyCd!"),
    ("NtryDtls", "Btch TxDtls"),
    ("TxDtls", "Refs Amt CdtDbtInd AmtDtls Avlbty BkTxCd Chrgs Intrst RltdPties RltdAgts"),
    ("Refs", "MsgId AcctSvcrRef PmtInfId InstrId EndToEndId UETR TxId MndtId ChqNb ClrSysRef"),
];

/// Checks names, order and presence of all elements below a node. An element that no table lists has only
/// text, or is an account's id.
fn check_order(node: &Node, orders: &[Order]) {
    let Some((_, order)) = orders.iter().find(|(name, _)| *name == node.name) else {
        assert!(
            matches!(node.name.as_str(), "Id" | "Othr" | "BookgDt" | "ValDt") || node.children.is_empty(),
            "{} has elements that no table names",
            node.name
        );
        return node.children.iter().for_each(|child| check_order(child, orders));
    };
    let known: Vec<&str> = order.split_whitespace().map(|name| name.trim_end_matches('!')).collect();
    let places: Vec<usize> = node
        .children
        .iter()
        .map(|child| {
            let place = known.iter().position(|name| *name == child.name);
            place.unwrap_or_else(|| panic!("{} does not belong into {}", child.name, node.name))
        })
        .collect();
    assert!(places.is_sorted(), "the elements of {} are out of order", node.name);
    for name in order.split_whitespace().filter_map(|name| name.strip_suffix('!')) {
        assert!(node.children.iter().any(|child| child.name == name), "{} has no {name}", node.name);
    }
    node.children.iter().for_each(|child| check_order(child, orders));
}

#[test]
fn instructions_carry_all_nets() {
    let settlement = settlement();
    for (leg, name, debtors, creditors) in [
        (Leg::Collection, "collection", vec!["alpha", "Beta & \"Sons\", <Ltd>"], vec!["HUB", "HUB"]),
        (Leg::Payout, "payout", vec!["HUB"], vec!["gamma"]),
    ] {
        let message = pacs009::write(&settlement, leg).unwrap().unwrap();
        golden(&format!("pacs009-{name}.xml"), &message);
        let document = Node::parse(&message);
        assert_eq!(document.attributes["xmlns"], pacs009::NAMESPACE);
        check_order(&document, &PACS009);
        assert_eq!(document.one("FICdtTrf/GrpHdr/NbOfTxs").text, debtors.len().to_string());
        // A settlement date for the group and one for a transaction exclude each other.
        assert_eq!(document.all("FICdtTrf/GrpHdr/IntrBkSttlmDt").len(), 1);
        assert!(document.all("FICdtTrf/CdtTrfTxInf/IntrBkSttlmDt").is_empty());
        let total = document.one("FICdtTrf/GrpHdr/TtlIntrBkSttlmAmt");
        assert_eq!((total.text.as_str(), total.attributes["Ccy"].as_str()), ("1001.00", "USD"));
        let amounts = document.all("FICdtTrf/CdtTrfTxInf/IntrBkSttlmAmt");
        let cents: u64 =
            amounts.iter().map(|amount| amount.text.replace('.', "").parse::<u64>().unwrap()).sum();
        assert_eq!(cents, 100_100);
        let names = |path: &str| -> Vec<String> {
            let path = format!("FICdtTrf/CdtTrfTxInf/{path}/FinInstnId/ClrSysMmbId/MmbId");
            document.all(&path).iter().map(|node| node.text.clone()).collect()
        };
        assert_eq!(
            (names("Dbtr"), names("Cdtr")),
            (
                debtors.iter().map(ToString::to_string).collect(),
                creditors.iter().map(ToString::to_string).collect()
            )
        );
        let mut ids: Vec<&str> = document
            .all("FICdtTrf/CdtTrfTxInf/PmtId/EndToEndId")
            .iter()
            .map(|node| node.text.as_str())
            .collect();
        ids.dedup();
        assert_eq!(ids.len(), amounts.len(), "end-to-end ids differ");
    }
}

#[test]
fn participants_are_notified_of_their_own_nets() {
    let settlement = settlement();
    for (index, name, amount, indicator) in
        [(0, "debit", "1000.00", "DBIT"), (2, "credit", "1001.00", "CRDT")]
    {
        let message = camt054::write(&settlement, index).unwrap().unwrap();
        golden(&format!("camt054-{name}.xml"), &message);
        let document = Node::parse(&message);
        assert_eq!(document.attributes["xmlns"], camt054::NAMESPACE);
        check_order(&document, &CAMT054);
        let entry = document.one("BkToCstmrDbtCdtNtfctn/Ntfctn/Ntry");
        assert_eq!(entry.one("Amt").text, amount);
        assert_eq!(entry.one("CdtDbtInd").text, indicator);
        let id = &entry.one("NtryDtls/TxDtls/Refs/EndToEndId").text;
        assert_eq!(id, &pacs009::end_to_end_id(&settlement, index), "the instruction's id");
    }
    assert_eq!(camt054::write(&settlement, 3).unwrap(), None, "nothing is paid");
    assert_eq!(camt054::write(&settlement, 4).unwrap(), None, "nobody");
}

#[test]
fn tables_round_trip() {
    let settlement = settlement();
    let text = tables::settlement(&settlement).unwrap();
    golden("settlement.csv", &text);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let (name, net) = (column("participant"), column("net"));
    let records: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    for (record, expected) in records.iter().zip(&settlement.nets) {
        assert_eq!(&record[name], expected.participant.name);
    }
    let cents: i64 = records.iter().map(|record| record[net].replace('.', "").parse::<i64>().unwrap()).sum();
    assert_eq!((records.len(), cents), (4, 0));

    let statement = statement();
    let text = tables::statement(&statement).unwrap();
    golden("statement.csv", &text);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let positions: Vec<String> = reader.records().map(|record| record.unwrap()[6].to_owned()).collect();
    assert_eq!(positions, ["-0.50", "1.50", "1.00", "-0.50", "-0.50"]);
    let wrong = Statement { closing: 0, ..statement };
    assert!(matches!(tables::statement(&wrong), Err(ReportError::WrongStatement { computed: -5_000, .. })));
}

fn statement() -> Statement {
    Statement {
        participant: "alpha".to_owned(),
        currency: Currency::new("USD").unwrap(),
        opening: -5_000,
        entries: vec![
            Entry {
                at: Instant(1_795_000_000_123),
                kind: EntryKind::Sent,
                reference: "1a0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10".to_owned(),
                counterparty: "Beta & \"Sons\", <Ltd>".to_owned(),
                change: 20_000,
            },
            Entry {
                at: Instant(1_795_000_001_000),
                kind: EntryKind::Received,
                reference: "9b0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10".to_owned(),
                counterparty: "gamma".to_owned(),
                change: -5_000,
            },
            Entry {
                at: Instant(1_795_000_002_000),
                kind: EntryKind::Settlement,
                reference: "7".to_owned(),
                counterparty: String::new(),
                change: -15_000,
            },
        ],
        closing: -5_000,
    }
}

const CAMT053: [Order; 21] = [
    ("Document", "BkToCstmrStmt!"),
    ("BkToCstmrStmt", "GrpHdr! Stmt! SplmtryData"),
    ("GrpHdr", "MsgId! CreDtTm! MsgRcpt MsgPgntn OrgnlBizQry AddtlInf"),
    (
        "Stmt",
        "Id! StmtPgntn ElctrncSeqNb RptgSeq LglSeqNb CreDtTm FrToDt CpyDplctInd RptgSrc Acct! RltdAcct Intrst Bal! \
         TxsSummry Ntry AddtlStmtInf",
    ),
    ("FrToDt", "FrDtTm! ToDtTm!"),
    ("Acct", "Id! Tp Ccy Nm Prxy Ownr Svcr"),
    ("Bal", "Tp! CdtLine Amt! CdtDbtInd! Dt! Avlbty"),
    ("Tp", "CdOrPrtry! SubTp"),
    ("CdOrPrtry", "Cd Prtry"),
    ("Dt", "Dt DtTm"),
    CAMT054[5],
    CAMT054[6],
    CAMT054[7],
    CAMT054[8],
    CAMT054[9],
    CAMT054[10],
    CAMT054[11],
    CAMT054[12],
    CAMT054[13],
    CAMT054[14],
    CAMT054[15],
];

const TRANSFER: [Order; 16] = [
    ("Document", "FIToFICstmrCdtTrf FIToFIPmtStsRpt"),
    ("FIToFICstmrCdtTrf", "GrpHdr! CdtTrfTxInf! SplmtryData"),
    ("FIToFIPmtStsRpt", "GrpHdr! OrgnlGrpInfAndSts TxInfAndSts SplmtryData"),
    (
        "GrpHdr",
        "MsgId! CreDtTm! BtchBookg NbOfTxs CtrlSum TtlIntrBkSttlmAmt IntrBkSttlmDt SttlmInf PmtTpInf InstgAgt InstdAgt",
    ),
    ("SttlmInf", "SttlmMtd! SttlmAcct ClrSys"),
    ("ClrSys", "Cd Prtry"),
    (
        "CdtTrfTxInf",
        "PmtId! PmtTpInf IntrBkSttlmAmt! IntrBkSttlmDt SttlmPrty SttlmTmIndctn SttlmTmReq AccptncDtTm PoolgAdjstmntDt \
         InstdAmt XchgRate ChrgBr! ChrgsInf InstgAgt InstdAgt UltmtDbtr InitgPty Dbtr! DbtrAcct DbtrAgt! DbtrAgtAcct \
         CdtrAgt! CdtrAgtAcct Cdtr! CdtrAcct UltmtCdtr RmtInf",
    ),
    ("PmtId", "InstrId EndToEndId! TxId UETR ClrSysRef"),
    ("Dbtr", "Nm PstlAdr Id CtryOfRes CtctDtls"),
    ("Cdtr", "Nm PstlAdr Id CtryOfRes CtctDtls"),
    ("DbtrAgt", "FinInstnId! BrnchId"),
    ("CdtrAgt", "FinInstnId! BrnchId"),
    ("InstgAgt", "FinInstnId! BrnchId"),
    ("InstdAgt", "FinInstnId! BrnchId"),
    ("FinInstnId", "BICFI ClrSysMmbId LEI Nm PstlAdr Othr"),
    ("ClrSysMmbId", "ClrSysId MmbId!"),
];

const STATUS: [Order; 3] = [
    (
        "TxInfAndSts",
        "StsId OrgnlGrpInf OrgnlInstrId OrgnlEndToEndId OrgnlTxId OrgnlUETR TxSts StsRsnInf ChrgsInf AccptncDtTm \
         FctvIntrBkSttlmDt AcctSvcrRef ClrSysRef InstgAgt InstdAgt OrgnlTxRef",
    ),
    ("StsRsnInf", "Orgtr Rsn AddtlInf"),
    ("Rsn", "Cd Prtry"),
];

const HEAD: [Order; 6] = [
    (
        "AppHdr",
        "CharSet Fr! To! BizMsgIdr! MsgDefIdr! BizSvc MktPrctc CreDt! BizPrcgDt CpyDplct PssblDplct Prty Sgntr Rltd",
    ),
    ("Fr", "OrgId FIId"),
    ("To", "OrgId FIId"),
    ("FIId", "FinInstnId! BrnchId"),
    TRANSFER[14],
    TRANSFER[15],
];

#[test]
fn a_window_is_a_statement() {
    let window = Window {
        id: 12,
        opened: Instant(1_794_999_000_000),
        closed: Instant(1_795_000_003_000),
        account: agent("alpha", None),
    };
    let message = camt053::write(&window, 3, &statement()).unwrap();
    golden("camt053.xml", &message);
    let document = Node::parse(&message);
    assert_eq!(document.attributes["xmlns"], camt053::NAMESPACE);
    check_order(&document, &CAMT053);
    let one = document.one("BkToCstmrStmt/Stmt");
    let balances: Vec<(&str, &str, &str)> = one
        .all("Bal")
        .iter()
        .map(|bal| {
            let text = |path: &str| bal.one(path).text.as_str();
            (text("Tp/CdOrPrtry/Cd"), text("Amt"), text("CdtDbtInd"))
        })
        .collect();
    assert_eq!(balances, [("OPBD", "0.50", "CRDT"), ("CLBD", "0.50", "CRDT")]);
    let entries = one.all("Ntry");
    assert_eq!(entries.len(), 3);
    let (first, second) = (entries[0], entries[1]);
    assert_eq!((first.one("Amt").text.as_str(), first.one("CdtDbtInd").text.as_str()), ("2.00", "DBIT"));
    assert_eq!(first.one("NtryRef").text, "1a0a1f3e7c1d4c9b8a556a3b1e8f2b10");
    assert_eq!((second.one("Amt").text.as_str(), second.one("CdtDbtInd").text.as_str()), ("0.50", "CRDT"));
    assert_eq!(one.one("TxsSummry/TtlDbtNtries/Sum").text, "2.00");
    assert_eq!(one.one("TxsSummry/TtlCdtNtries/NbOfNtries").text, "2");
    let wrong = Statement { closing: 0, ..statement() };
    assert!(matches!(camt053::write(&window, 3, &wrong), Err(ReportError::WrongStatement { .. })));
}

#[test]
fn a_transfer_is_a_credit_transfer_with_a_status() {
    let mut transfer = Transfer {
        id: "1a0a1f3e-7c1d-4c9b-8a55-6a3b1e8f2b10".to_owned(),
        payer: agent("alpha", Some("ALPHKE22")),
        payee: agent("Beta & \"Sons\", <Ltd>", None),
        currency: Currency::new("USD").unwrap(),
        amount: 12_345_600,
        received: Instant(1_795_000_000_000),
        at: Instant(1_795_000_000_123),
        status: Status::Cleared,
        hub: "Hub".to_owned(),
    };
    let orders: Vec<Order> = TRANSFER.into_iter().chain(STATUS).collect();
    let message = transfer.credit_transfer().unwrap().unwrap();
    golden("pacs008.xml", &message);
    let document = Node::parse(&message);
    assert_eq!(document.attributes["xmlns"], PACS008);
    check_order(&document, &orders);
    let one = document.one("FIToFICstmrCdtTrf/CdtTrfTxInf");
    assert_eq!(
        (one.one("IntrBkSttlmAmt").text.as_str(), one.one("PmtId/UETR").text.as_str()),
        ("1234.56", &*transfer.id)
    );
    assert_eq!(one.one("CdtrAgt/FinInstnId/ClrSysMmbId/MmbId").text, transfer.payee.name);

    for (status, name, code) in [
        (Status::Cleared, "cleared", "ACSC"),
        (Status::Pending, "pending", "PDNG"),
        (
            Status::Rejected { code: 4001, text: "Payer FSP\u{1} has too little".to_owned() },
            "rejected",
            "RJCT",
        ),
    ] {
        transfer.status = status;
        let message = transfer.status_report().unwrap();
        golden(&format!("pacs002-{name}.xml"), &message);
        let document = Node::parse(&message);
        assert_eq!(document.attributes["xmlns"], PACS002);
        check_order(&document, &orders);
        let one = document.one("FIToFIPmtStsRpt/TxInfAndSts");
        assert_eq!(one.one("TxSts").text, code);
        let reasons: Vec<&str> =
            one.all("StsRsnInf/Rsn/Prtry").iter().map(|node| node.text.as_str()).collect();
        assert_eq!(reasons, if code == "RJCT" { vec!["4001"] } else { vec![] });
    }
    assert_eq!(transfer.credit_transfer(), Ok(None), "not cleared");
    transfer.amount = 1;
    transfer.status = Status::Cleared;
    assert!(matches!(transfer.credit_transfer(), Err(ReportError::TooFine { .. })));
    // An id that is not a version 4 UUID is not an end-to-end reference.
    transfer.id = "1a0a1f3e-7c1d-1c9b-8a55-6a3b1e8f2b10".to_owned();
    assert!(!transfer.status_report().unwrap().contains("OrgnlUETR"));
}

#[test]
fn a_header_names_sender_receiver_and_message() {
    let header = Header {
        from: "Hub",
        to: "alpha",
        id: "S7-USD-C",
        namespace: PACS008,
        created: Instant(1_795_000_000_123),
    };
    let text = head001::write(&header).unwrap();
    golden("head001.xml", &text);
    let document = Node::parse(&text);
    check_order(&document, &HEAD);
    assert_eq!(document.attributes["xmlns"], head001::NAMESPACE);
    assert_eq!(document.one("MsgDefIdr").text, "pacs.008.001.08");
    assert_eq!(document.one("To/FIId/FinInstnId/ClrSysMmbId/MmbId").text, "alpha");
    assert!(head001::write(&Header { to: "", ..header }).is_err());
}

#[test]
fn misleading_reports_are_refused() {
    let refused = |change: &dyn Fn(&mut Settlement)| {
        let mut settlement = settlement();
        change(&mut settlement);
        let error = pacs009::write(&settlement, Leg::Collection).unwrap_err();
        assert!(tables::settlement(&settlement).is_err() || matches!(error, ReportError::Text { .. }));
        error
    };
    let unbalanced = refused(&|settlement| {
        settlement.nets[2].received += 100;
        settlement.nets[2].net -= 100;
    });
    assert_eq!(unbalanced, ReportError::Unbalanced { settlement: "7".to_owned(), sum: -100 });
    assert!(matches!(refused(&|settlement| settlement.nets[0].net += 1), ReportError::WrongNet { .. }));
    let too_fine = refused(&|settlement| {
        (settlement.nets[0].sent, settlement.nets[0].net) = (10_005_001, 10_000_001);
        (settlement.nets[2].received, settlement.nets[2].net) = (10_015_001, -10_010_001);
    });
    assert!(matches!(too_fine, ReportError::TooFine { .. }), "{too_fine}");
    for (bic, name) in [(Some("ALPHKE2"), "a"), (Some("ALPH2E22"), "a"), (None, ""), (None, "\u{1}")] {
        let error = refused(&|settlement| settlement.nets[0].participant = agent(name, bic));
        assert!(matches!(error, ReportError::Text { .. }), "{error}");
    }
    assert!(matches!(refused(&|settlement| settlement.id = "7".repeat(36)), ReportError::Text { .. }));
    let mut even = settlement();
    even.nets.retain(|net| net.net == 0);
    assert_eq!(pacs009::write(&even, Leg::Collection), Ok(None));
}
