//! The shop's pages.

use batzen_http::Response;
use batzen_service::{escape_html, html_page};

use crate::shop::articles::{ARTICLES, Article};

const STYLE: &str = ":root{color-scheme:light dark;background:Canvas}body{font-family:Georgia,serif;max-width:36rem;margin:2rem auto;\
                     padding:0 1rem;line-height:1.5}button{font:inherit;padding:.4rem 1rem}";

fn page(status: u16, title: &str, body: &str) -> Response {
    html_page(status, title, STYLE, body)
}

/// All articles.
pub(crate) fn catalogue(currency: &str) -> Response {
    let row = |article: &Article| {
        let Article { slug, title, price, teaser, .. } = article;
        format!(
            "<h2><a href=\"/articles/{slug}\">{title}</a></h2><p>{teaser} <small>{price} {currency}</small></p>"
        )
    };
    page(200, "The digital bookshop", &ARTICLES.iter().map(row).collect::<String>())
}

/// An article that the visitor has not paid. `pay_page` is where an order of hers waits, if there is one.
pub(crate) fn offer(article: &Article, currency: &str, pay_page: Option<&str>) -> Response {
    let Article { slug, title, price, teaser, .. } = article;
    let waiting = pay_page.map_or_else(String::new, |url| {
        format!("<p>Your order waits: <a id=\"order\" href=\"{}\">go on to pay</a>.</p>", escape_html(url))
    });
    let body = format!(
        "<p>{teaser}</p>{waiting}<form method=\"post\" action=\"/articles/{slug}/buy\">\
         <button id=\"buy\">Buy for {price} {currency}</button></form><p><a href=\"/\">All articles</a></p>"
    );
    page(402, title, &body)
}

/// An article that the visitor has paid.
pub(crate) fn article(article: &Article) -> Response {
    let Article { slug, title, teaser, text, .. } = article;
    let body = format!(
        "<p><em>{teaser}</em></p><p id=\"text\">{text}</p>\
         <form method=\"post\" action=\"/articles/{slug}/return\"><button id=\"return\">Give it back</button></form>\
         <p><a href=\"/\">All articles</a></p>"
    );
    page(200, title, &body)
}

/// An article that the visitor has given back.
pub(crate) fn returned(article: &Article, order_page: &str) -> Response {
    let url = escape_html(order_page);
    let body = format!(
        "<p>You have given this article back. <a id=\"order\" href=\"{url}\">Your wallet gets the money here</a>.</p>\
         <p><a href=\"/\">All articles</a></p>"
    );
    page(410, article.title, &body)
}

/// A page with one sentence.
pub(crate) fn message(status: u16, text: &str) -> Response {
    page(status, text, "<p><a href=\"/\">All articles</a></p>")
}
