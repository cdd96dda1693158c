//! Products.

use batzen_http::client::Method;
use serde_json::json;

use super::{quiet_shop, token_auth};

#[test]
fn products_are_sold_from_stock() {
    let shop = quiet_shop(&token_auth());
    shop.log_in();
    shop.open_view("#/products", "Products");
    shop.until_text("nothing", "No products yet");
    shop.open_view("#/product", "New product");
    let book = [("product_id", "b-1"), ("description", "<Poems>"), ("unit", "copy"), ("stock", "3")];
    shop.send("product-form", &[&book[..], &[("price", "cheap")]].concat());
    shop.until_error("product-price", "such as 12.50");
    shop.audit("new-product");
    shop.send("product-form", &[("price", "12,5"), ("age", "12"), ("restock", "2100-01-31")]);
    shop.until_text("view", "In carts and unpaid orders");
    shop.browser.until("document.querySelector('#view h2').innerText === '<Poems>'");
    shop.send("product-form", &[("stock", "2"), ("lost", "6")]);
    shop.until_error("product-lost", "more than what is left");
    shop.send("product-form", &[("stock", "2"), ("lost", "1"), ("description", "Poems")]);
    shop.until_text("message", "Saved");
    shop.audit("product");
    let seen = shop.get("private/products/b-1");
    let expected = json!({
        "description": "Poems", "unit": "copy", "price": "KUDOS:12.5", "total_stock": 5, "total_lost": 1,
        "minimum_age": 12,
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&seen[name], value, "{name} of {seen}");
    }
    // Another one in any number.
    shop.open_view("#/product", "New product");
    let tea = [("product_id", "tea"), ("description", "Tea"), ("price", "2"), ("unit", "cup"), ("stock", "")];
    shop.send("product-form", &[&tea[..], &[("product_id", "b-1")]].concat());
    shop.until_error("product-id", "another product with this id");
    shop.send("product-form", &[("product_id", "tea")]);
    shop.browser.until("document.querySelector('#view h2').innerText === 'Tea'");
    shop.open_view("#/products", "Products");
    shop.until_text("products", "4 left");
    shop.until_text("products", "Unlimited");
    shop.audit("products");

    // They are ordered: the price is the sum, and the units are held.
    shop.open_view("#/new", "New order");
    shop.send("add-product", &[("product", "nothing"), ("quantity", "1")]);
    shop.until_error("basket-product", "no such product");
    shop.send("add-product", &[("product", "b-1"), ("quantity", "5")]);
    shop.until_error("basket-quantity", "Only 4 of b-1 are left. More comes on 31 Jan 2100");
    shop.send("add-product", &[("product", "b-1"), ("quantity", "3")]);
    shop.until_text("basket", "3 × Poems");
    shop.send("add-product", &[("product", "tea"), ("quantity", "2")]);
    shop.until_text("basket", "2 × Tea");
    shop.audit("basket");
    assert_eq!(shop.text_of("document.getElementById('order-amount').value"), "41.50");
    assert_eq!(shop.text_of("document.getElementById('order-summary').value"), "3 × Poems, 2 × Tea");
    shop.send("new-order", &[("order_id", "basket")]);
    shop.until_text("payment", "41.50 KUDOS");
    assert_eq!(shop.get("private/products/b-1")["total_locked"], 3);
    // Somebody else is quicker.
    shop.open_view("#/new", "New order");
    shop.send("add-product", &[("product", "b-1"), ("quantity", "1")]);
    shop.until_text("basket", "1 × Poems");
    let last = json!({
        "order": { "amount": "KUDOS:1", "summary": "x" },
        "inventory_products": [{ "product_id": "b-1", "quantity": 1 }],
    });
    assert_eq!(shop.call(Method::POST, "private/orders", &last).status, 200);
    shop.click("#new-order button[type=submit]");
    shop.until_text("message", "b-1 is sold out. More comes on 31 Jan 2100");

    // An order that no wallet has is cancelled, after a question, and its units are free.
    shop.browser.run("location.hash = '#/order/basket'");
    shop.until_shown("cancel-order");
    shop.click("#cancel-order");
    shop.until_text("cancel-order", "Really cancel?");
    shop.click("#cancel-order");
    shop.until_text("orders", "1.00 KUDOS");
    shop.until_rows(1);
    assert_eq!(shop.get("private/products/b-1")["total_locked"], 1);
    shop.open_view("#/product/tea", "Tea");
    shop.click("#delete-product");
    shop.until_text("delete-product", "Really delete?");
    shop.click("#delete-product");
    shop.until_text("products", "Poems");
    assert!(!shop.text_of("document.getElementById('products').innerText").contains("Tea"));
    shop.close();
}
