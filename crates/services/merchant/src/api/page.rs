//! Pages for customers' browsers. They work without scripts; the one about an order that is due reloads itself.

use std::fmt::Write as _;

use batzen_http::{Response, header};
use batzen_protocol::api::merchant::TemplateContract;
use batzen_service::{escape_html, html_page, qr_code};

use crate::urls::is_web_url;

/// Interval at which the page of an order that is due checks whether it was paid, in seconds.
const RELOAD_S: u32 = 3;
const STYLE: &str = ":root{color-scheme:light dark;background:Canvas}body{font-family:system-ui,sans-serif;max-width:32rem;\
                     margin:2rem auto;padding:0 1rem;text-align:center}svg{width:min(20rem,80vw);background:#fff;\
                     padding:1rem;border-radius:.5rem}a{word-break:break-all}";

fn page(status: u16, title: &str, body: &str) -> Response {
    html_page(status, title, STYLE, body)
}

/// A page with one sentence.
pub(super) fn message(status: u16, text: &str) -> Response {
    page(status, text, "")
}

/// A page about something that a wallet opens. It reloads itself, because then the state changes.
fn offer(status: u16, summary: &str, what: &str, amount: &str, uri: &str) -> Response {
    // If the text is too long for a code, the link below it works anyway.
    let (size, path) = qr_code(uri).unwrap_or((1, String::new()));
    let (uri, amount) = (escape_html(uri), escape_html(amount));
    let body = format!(
        "<p>{amount}</p><svg viewBox=\"0 0 {size} {size}\" role=\"img\" aria-label=\"QR code of the {what}\">\
         <path d=\"{path}\"/></svg><p>Scan the code with your wallet, or open this link on the device that has it:\
         </p><p><a href=\"{uri}\">{uri}</a></p>"
    );
    page(status, summary, &body).with_header(header::REFRESH, &RELOAD_S.to_string())
}

/// The page about an order that is to be paid: 402.
pub(super) fn due(summary: &str, amount: &str, pay_uri: &str) -> Response {
    offer(402, summary, "payment", amount, pay_uri)
}

/// The page about a paid order with a refund that the wallet has not got.
pub(super) fn refund(summary: &str, amount: &str, refund_uri: &str) -> Response {
    offer(200, summary, "refund", &format!("Refund: {amount}"), refund_uri)
}

/// The page about a tip.
pub(super) fn tip(justification: &str, amount: &str, tip_uri: &str) -> Response {
    offer(200, justification, "tip", &format!("Tip: {amount}"), tip_uri)
}

/// The page on which a customer makes an order of a template.
pub(super) fn template(shop: &str, contract: &TemplateContract, currency: &str) -> Response {
    let title = contract.summary.as_deref().unwrap_or(shop);
    let mut body = String::from("<form method=\"post\">");
    if contract.summary.is_none() {
        body.push_str("<p><label>What for? <input name=\"summary\" required maxlength=\"200\"></label></p>");
    }
    match contract.amount {
        Some(amount) => {
            let _ = write!(body, "<p>{}</p>", escape_html(&amount.to_string()));
        }
        None => {
            let currency = escape_html(currency);
            let _ = write!(
                body,
                "<p><label>Amount in {currency} <input name=\"amount\" inputmode=\"decimal\" required \
                 pattern=\"[0-9]+([.,][0-9]{{1,8}})?\"></label></p>"
            );
        }
    }
    body.push_str("<p><button>Pay</button></p></form>");
    page(200, title, &body)
}

/// The page about a paid order.
pub(super) fn paid(summary: &str, fulfillment_url: Option<&str>) -> Response {
    let link = fulfillment_url.filter(|url| is_web_url(url)).map(|url| {
        let url = escape_html(url);
        format!("<p><a href=\"{url}\">Continue</a></p>")
    });
    page(200, summary, &format!("<p>Paid. Thank you!</p>{}", link.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_show_texts_as_texts() {
        let page = due("a <book>", "KUDOS:1", "taler://pay/x/1/?c=\"2\"");
        let html = String::from_utf8(page.body.to_vec()).unwrap();
        assert_eq!(page.status, 402);
        assert!(html.contains("<h1>a &lt;book&gt;</h1>") && !html.contains("=\"2\"\""), "{html}");
        let script = paid("x", Some("javascript:alert(1)"));
        assert!(!String::from_utf8(script.body.to_vec()).unwrap().contains("javascript"));
    }
}
