-- version 7
-- bank.books
CREATE TABLE "bank"."books" (
  "vshard" smallint NOT NULL,
  "id" smallint NOT NULL,
  "currency" text COLLATE "C" NOT NULL,
  "next_row_id" bigint NOT NULL,
  "password_salt" bytea NOT NULL,
  "identity" bytea NOT NULL,
  "headroom" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "books_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- bank.customers
CREATE TABLE "bank"."customers" (
  "vshard" smallint NOT NULL,
  "name" text COLLATE "C" NOT NULL,
  "ledger_id" bytea NOT NULL,
  "is_opened" boolean NOT NULL,
  "password_hash" bytea,
  "created" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_ledger_id" bigint,
  CONSTRAINT "customers_pkey" PRIMARY KEY ("vshard", "name")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "customers_by_ledger_id" ON "bank"."customers" USING btree ("ix_by_ledger_id") WHERE "ix_by_ledger_id" IS NOT NULL;
-- bank.exchanges
CREATE TABLE "bank"."exchanges" (
  "vshard" smallint NOT NULL,
  "name" text COLLATE "C" NOT NULL,
  "since" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "exchanges_pkey" PRIMARY KEY ("vshard", "name")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- bank.intents
CREATE TABLE "bank"."intents" (
  "vshard" smallint NOT NULL,
  "origin" smallint NOT NULL,
  "id" bytea NOT NULL,
  "debit_account" text COLLATE "C" NOT NULL,
  "credit_account" text COLLATE "C" NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "reserve_pub" bytea,
  "wtid" bytea,
  "exchange_base_url" text COLLATE "C",
  "text" text COLLATE "C",
  "attempt" bigint NOT NULL,
  "is_reserved" boolean NOT NULL,
  "is_open" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_reserve_pub" bigint,
  CONSTRAINT "intents_pkey" PRIMARY KEY ("vshard", "origin", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "intents_by_reserve_pub" ON "bank"."intents" USING btree ("ix_by_reserve_pub") WHERE "ix_by_reserve_pub" IS NOT NULL;
-- bank.meta
CREATE TABLE "bank"."meta" (
  "singleton" boolean NOT NULL,
  "store_id" bytea NOT NULL,
  "sip_key" bytea NOT NULL,
  "partitions" smallint NOT NULL,
  "schema_version" integer NOT NULL,
  "program" text COLLATE "C" NOT NULL,
  "serial_base" bigint NOT NULL,
  "cluster_id" bigint NOT NULL,
  "currency" text COLLATE "C",
  "citus" boolean NOT NULL,
  "created" timestamp with time zone NOT NULL,
  CONSTRAINT "meta_pkey" PRIMARY KEY ("singleton")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- bank.state
CREATE TABLE "bank"."state" (
  "vshard" smallint NOT NULL,
  "id" smallint NOT NULL,
  "currency" text COLLATE "C" NOT NULL,
  "next_row_id" bigint NOT NULL,
  "password_salt" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "state_pkey" PRIMARY KEY ("vshard", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- bank.transactions
CREATE TABLE "bank"."transactions" (
  "vshard" smallint NOT NULL,
  "origin" smallint NOT NULL,
  "id" bytea NOT NULL,
  "row_id" bigint NOT NULL,
  "debit_account" text COLLATE "C" NOT NULL,
  "credit_account" text COLLATE "C" NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "time" bigint NOT NULL,
  "reserve_pub" bytea,
  "wtid" bytea,
  "exchange_base_url" text COLLATE "C",
  "text" text COLLATE "C",
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_reserve_pub" bigint,
  "ix_incoming" bytea,
  "ix_outgoing" bytea,
  CONSTRAINT "transactions_pkey" PRIMARY KEY ("vshard", "origin", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "transactions_by_reserve_pub" ON "bank"."transactions" USING btree ("ix_by_reserve_pub") WHERE "ix_by_reserve_pub" IS NOT NULL;
CREATE INDEX "transactions_incoming" ON "bank"."transactions" USING btree ("ix_incoming") WHERE "ix_incoming" IS NOT NULL;
CREATE INDEX "transactions_outgoing" ON "bank"."transactions" USING btree ("ix_outgoing") WHERE "ix_outgoing" IS NOT NULL;
-- bank.withdrawals
CREATE TABLE "bank"."withdrawals" (
  "vshard" smallint NOT NULL,
  "wopid" bytea NOT NULL,
  "account" text COLLATE "C" NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "created" bigint NOT NULL,
  "reserve_pub" bytea,
  "exchange_account" text COLLATE "C",
  "is_reserved" boolean NOT NULL,
  "aborted" boolean NOT NULL,
  "row_id" bigint,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "withdrawals_pkey" PRIMARY KEY ("vshard", "wopid")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- bank.writers
CREATE TABLE "bank"."writers" (
  "writer_id" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  "epoch" bigint NOT NULL,
  "batch" bigint NOT NULL,
  "node" text COLLATE "C" NOT NULL,
  "seen" timestamp with time zone NOT NULL,
  CONSTRAINT "writers_pkey" PRIMARY KEY ("writer_id")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- exchange.aggregates
CREATE TABLE "exchange"."aggregates" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "merchant_pub" bytea NOT NULL,
  "account" bytea NOT NULL,
  "total_val" bigint NOT NULL,
  "total_frac" integer NOT NULL,
  "wtid" bytea NOT NULL,
  "kyc_row" bigint,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "aggregates_pkey" PRIMARY KEY ("vshard", "h_payto", "merchant_pub", "account")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.archive_counts
CREATE TABLE "exchange"."archive_counts" (
  "vshard" smallint NOT NULL,
  "run" bigint NOT NULL,
  "table" integer NOT NULL,
  "denom" bigint NOT NULL,
  "rows" bigint NOT NULL,
  "bytes" bigint NOT NULL,
  "units" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "archive_counts_pkey" PRIMARY KEY ("vshard", "run", "table", "denom")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "archive_counts_by_run" ON "exchange"."archive_counts" USING btree ("run");
-- exchange.archive_runs
CREATE TABLE "exchange"."archive_runs" (
  "vshard" smallint NOT NULL,
  "run" bigint NOT NULL,
  "id" bytea NOT NULL,
  "started" bigint NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "rows" bigint NOT NULL,
  "bytes" bigint NOT NULL,
  "finished" bigint,
  "digest" bytea,
  "dropped" bigint,
  "drop_reason" text COLLATE "C",
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_open" bigint,
  CONSTRAINT "archive_runs_pkey" PRIMARY KEY ("vshard", "run")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "archive_runs_open" ON "exchange"."archive_runs" USING btree ("ix_open") WHERE "ix_open" IS NOT NULL;
-- exchange.archive_transfers
CREATE TABLE "exchange"."archive_transfers" (
  "vshard" smallint NOT NULL,
  "wtid" bytea NOT NULL,
  "contributed_units" bytea NOT NULL,
  "fee_units" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "archive_transfers_pkey" PRIMARY KEY ("vshard", "wtid")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.auditor_denoms
CREATE TABLE "exchange"."auditor_denoms" (
  "vshard" smallint NOT NULL,
  "auditor_pub" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "auditor_sig" bytea NOT NULL,
  "record_serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "auditor_denoms_pkey" PRIMARY KEY ("vshard", "auditor_pub", "serial")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.auditors
CREATE TABLE "exchange"."auditors" (
  "vshard" smallint NOT NULL,
  "auditor_pub" bytea NOT NULL,
  "url" text COLLATE "C" NOT NULL,
  "name" text COLLATE "C" NOT NULL,
  "last_change" bigint NOT NULL,
  "enabled" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "auditors_pkey" PRIMARY KEY ("vshard", "auditor_pub")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.close_requests
CREATE TABLE "exchange"."close_requests" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "request_time" bigint NOT NULL,
  "reserve_sig" bytea NOT NULL,
  "requested" bytea,
  "h_payto" bytea NOT NULL,
  "balance_val" bigint NOT NULL,
  "balance_frac" integer NOT NULL,
  "done" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_open" bytea,
  CONSTRAINT "close_requests_pkey" PRIMARY KEY ("vshard", "reserve_pub", "request_time")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "close_requests_open" ON "exchange"."close_requests" USING btree ("ix_open") WHERE "ix_open" IS NOT NULL;
-- exchange.closings
CREATE TABLE "exchange"."closings" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "n" bigint NOT NULL,
  "time" bigint NOT NULL,
  "wtid" bytea NOT NULL,
  "h_payto" bytea NOT NULL,
  "account" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "fee_val" bigint NOT NULL,
  "fee_frac" integer NOT NULL,
  "paid_val" bigint NOT NULL,
  "paid_frac" integer NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "closings_pkey" PRIMARY KEY ("vshard", "reserve_pub", "n")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.coins
CREATE TABLE "exchange"."coins" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "denom" bigint NOT NULL,
  "h_age" bytea,
  "denom_sig" bytea NOT NULL,
  "remaining_val" bigint NOT NULL,
  "remaining_frac" integer NOT NULL,
  "zombie" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "coins_pkey" PRIMARY KEY ("vshard", "coin_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.collected_sums
CREATE TABLE "exchange"."collected_sums" (
  "vshard" smallint NOT NULL,
  "term" smallint NOT NULL,
  "units" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "collected_sums_pkey" PRIMARY KEY ("vshard", "term")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.contracts
CREATE TABLE "exchange"."contracts" (
  "vshard" smallint NOT NULL,
  "purse_pub" bytea NOT NULL,
  "contract_pub" bytea NOT NULL,
  "econtract" bytea NOT NULL,
  "econtract_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_contract" bigint,
  CONSTRAINT "contracts_pkey" PRIMARY KEY ("vshard", "purse_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "contracts_by_contract" ON "exchange"."contracts" USING btree ("ix_by_contract") WHERE "ix_by_contract" IS NOT NULL;
-- exchange.counters
CREATE TABLE "exchange"."counters" (
  "vshard" smallint NOT NULL,
  "name" text COLLATE "C" NOT NULL,
  "value" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "counters_pkey" PRIMARY KEY ("vshard", "name")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.credits_aside
CREATE TABLE "exchange"."credits_aside" (
  "vshard" smallint NOT NULL,
  "account" bytea NOT NULL,
  "bank_row" bigint NOT NULL,
  "h_text" bytea NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "text" text COLLATE "C" NOT NULL,
  "time" bigint NOT NULL,
  "settled" bigint,
  "note" text COLLATE "C",
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_open" bytea,
  CONSTRAINT "credits_aside_pkey" PRIMARY KEY ("vshard", "account", "bank_row", "h_text")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "credits_aside_open" ON "exchange"."credits_aside" USING btree ("ix_open") WHERE "ix_open" IS NOT NULL;
-- exchange.cs_nonces
CREATE TABLE "exchange"."cs_nonces" (
  "vshard" smallint NOT NULL,
  "kind" smallint NOT NULL,
  "nonce" bytea NOT NULL,
  "operation" bytea NOT NULL,
  "denom_max" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "cs_nonces_pkey" PRIMARY KEY ("vshard", "kind", "nonce")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.cursors
CREATE TABLE "exchange"."cursors" (
  "vshard" smallint NOT NULL,
  "account" bytea NOT NULL,
  "bank_row" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "cursors_pkey" PRIMARY KEY ("vshard", "account")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.denominations
CREATE TABLE "exchange"."denominations" (
  "vshard" smallint NOT NULL,
  "serial" bigint NOT NULL,
  "h_denom_pub" bytea NOT NULL,
  "cipher" smallint NOT NULL,
  "public_key" bytea NOT NULL,
  "age_mask" bigint NOT NULL,
  "value_val" bigint NOT NULL,
  "value_frac" integer NOT NULL,
  "fee_withdraw_val" bigint NOT NULL,
  "fee_withdraw_frac" integer NOT NULL,
  "fee_deposit_val" bigint NOT NULL,
  "fee_deposit_frac" integer NOT NULL,
  "fee_refresh_val" bigint NOT NULL,
  "fee_refresh_frac" integer NOT NULL,
  "fee_refund_val" bigint NOT NULL,
  "fee_refund_frac" integer NOT NULL,
  "start" bigint NOT NULL,
  "expire_withdraw" bigint NOT NULL,
  "expire_deposit" bigint NOT NULL,
  "expire_legal" bigint NOT NULL,
  "master_sig" bytea NOT NULL,
  "record_serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_hash" bigint,
  CONSTRAINT "denominations_pkey" PRIMARY KEY ("vshard", "serial")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "denominations_by_hash" ON "exchange"."denominations" USING btree ("ix_by_hash") WHERE "ix_by_hash" IS NOT NULL;
-- exchange.deposits
CREATE TABLE "exchange"."deposits" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "merchant_pub" bytea NOT NULL,
  "h_contract_terms" bytea NOT NULL,
  "denom" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "wallet_time" bigint NOT NULL,
  "exchange_time" bigint NOT NULL,
  "refund_deadline" bigint NOT NULL,
  "wire_deadline" bigint NOT NULL,
  "wire_salt" bytea NOT NULL,
  "h_payto" bytea NOT NULL,
  "coin_sig" bytea NOT NULL,
  "refunded_val" bigint NOT NULL,
  "refunded_frac" integer NOT NULL,
  "wtid" bytea,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_wtid" bigint,
  CONSTRAINT "deposits_pkey" PRIMARY KEY ("vshard", "coin_pub", "merchant_pub", "h_contract_terms")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "deposits_by_wtid" ON "exchange"."deposits" USING btree ("ix_by_wtid") WHERE "ix_by_wtid" IS NOT NULL;
-- exchange.deposits_open
CREATE TABLE "exchange"."deposits_open" (
  "due" bigint NOT NULL,
  "ix_by_ready" bytea,
  "ix_by_target" bytea,
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "merchant_pub" bytea NOT NULL,
  "h_contract_terms" bytea NOT NULL,
  "serial" bigint NOT NULL
) PARTITION BY RANGE (due);
CREATE TABLE "exchange"."deposits_open_default" PARTITION OF "exchange"."deposits_open" DEFAULT WITH (fillfactor=90, autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.05, autovacuum_vacuum_cost_delay=0);
CREATE INDEX "deposits_open_by_ready" ON "exchange"."deposits_open" USING btree ("ix_by_ready") WHERE "ix_by_ready" IS NOT NULL;
CREATE INDEX "deposits_open_by_target" ON "exchange"."deposits_open" USING btree ("ix_by_target") WHERE "ix_by_target" IS NOT NULL;
-- exchange.drains
CREATE TABLE "exchange"."drains" (
  "vshard" smallint NOT NULL,
  "wtid" bytea NOT NULL,
  "account_section" text COLLATE "C" NOT NULL,
  "payto_uri" text COLLATE "C" NOT NULL,
  "date" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "master_sig" bytea NOT NULL,
  "executed" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_open" bytea,
  CONSTRAINT "drains_pkey" PRIMARY KEY ("vshard", "wtid")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "drains_open" ON "exchange"."drains" USING btree ("ix_open") WHERE "ix_open" IS NOT NULL;
-- exchange.extensions
CREATE TABLE "exchange"."extensions" (
  "vshard" smallint NOT NULL,
  "id" smallint NOT NULL,
  "manifests" text COLLATE "C" NOT NULL,
  "master_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "extensions_pkey" PRIMARY KEY ("vshard", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.global_fees
CREATE TABLE "exchange"."global_fees" (
  "vshard" smallint NOT NULL,
  "start" bigint NOT NULL,
  "end" bigint NOT NULL,
  "history_fee_val" bigint NOT NULL,
  "history_fee_frac" integer NOT NULL,
  "account_fee_val" bigint NOT NULL,
  "account_fee_frac" integer NOT NULL,
  "purse_fee_val" bigint NOT NULL,
  "purse_fee_frac" integer NOT NULL,
  "purse_timeout" bigint NOT NULL,
  "history_expiration" bigint NOT NULL,
  "purse_account_limit" bigint NOT NULL,
  "master_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_all" bigint,
  CONSTRAINT "global_fees_pkey" PRIMARY KEY ("vshard", "start")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "global_fees_all" ON "exchange"."global_fees" USING btree ("ix_all") WHERE "ix_all" IS NOT NULL;
-- exchange.history_requests
CREATE TABLE "exchange"."history_requests" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "request_time" bigint NOT NULL,
  "fee_val" bigint NOT NULL,
  "fee_frac" integer NOT NULL,
  "reserve_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "history_requests_pkey" PRIMARY KEY ("vshard", "reserve_pub", "request_time")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.kyc_alerts
CREATE TABLE "exchange"."kyc_alerts" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_open" bytea,
  CONSTRAINT "kyc_alerts_pkey" PRIMARY KEY ("vshard", "h_payto")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "kyc_alerts_open" ON "exchange"."kyc_alerts" USING btree ("ix_open") WHERE "ix_open" IS NOT NULL;
-- exchange.kyc_decisions
CREATE TABLE "exchange"."kyc_decisions" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "provider" text COLLATE "C" NOT NULL,
  "time" bigint NOT NULL,
  "officer" text COLLATE "C" NOT NULL,
  "approved" boolean NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "held_val" bigint NOT NULL,
  "held_frac" integer NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "kyc_decisions_pkey" PRIMARY KEY ("vshard", "h_payto", "provider", "time", "officer")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.kyc_processes
CREATE TABLE "exchange"."kyc_processes" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "provider" text COLLATE "C" NOT NULL,
  "started" bigint NOT NULL,
  "token" text COLLATE "C" NOT NULL,
  "state" smallint NOT NULL,
  "expiration" bigint NOT NULL,
  "provider_user_id" text COLLATE "C" NOT NULL,
  "attributes" bytea NOT NULL,
  "submitted" bytea NOT NULL,
  "approved_by" text COLLATE "C" NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_submitted" bytea,
  CONSTRAINT "kyc_processes_pkey" PRIMARY KEY ("vshard", "h_payto", "provider")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "kyc_processes_submitted" ON "exchange"."kyc_processes" USING btree ("ix_submitted") WHERE "ix_submitted" IS NOT NULL;
-- exchange.kyc_requirements
CREATE TABLE "exchange"."kyc_requirements" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "row" bigint NOT NULL,
  "checks" text COLLATE "C" NOT NULL,
  "asked" bigint,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_row" bigint,
  CONSTRAINT "kyc_requirements_pkey" PRIMARY KEY ("vshard", "h_payto", "row")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "kyc_requirements_by_row" ON "exchange"."kyc_requirements" USING btree ("ix_by_row") WHERE "ix_by_row" IS NOT NULL;
-- exchange.kyc_usage
CREATE TABLE "exchange"."kyc_usage" (
  "vshard" smallint NOT NULL,
  "account" bytea NOT NULL,
  "operation" smallint NOT NULL,
  "events" bytea NOT NULL,
  "holds" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "kyc_usage_pkey" PRIMARY KEY ("vshard", "account", "operation")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.melt_by_rc
CREATE TABLE "exchange"."melt_by_rc" (
  "vshard" smallint NOT NULL,
  "rc" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "melt_by_rc_pkey" PRIMARY KEY ("vshard", "rc")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.melts
CREATE TABLE "exchange"."melts" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "rc" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "coin_sig" bytea NOT NULL,
  "noreveal_index" smallint NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "melts_pkey" PRIMARY KEY ("vshard", "coin_pub", "rc")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.meta
CREATE TABLE "exchange"."meta" (
  "singleton" boolean NOT NULL,
  "store_id" bytea NOT NULL,
  "sip_key" bytea NOT NULL,
  "partitions" smallint NOT NULL,
  "schema_version" integer NOT NULL,
  "program" text COLLATE "C" NOT NULL,
  "serial_base" bigint NOT NULL,
  "cluster_id" bigint NOT NULL,
  "currency" text COLLATE "C",
  "citus" boolean NOT NULL,
  "created" timestamp with time zone NOT NULL,
  CONSTRAINT "meta_pkey" PRIMARY KEY ("singleton")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- exchange.past_transfers
CREATE TABLE "exchange"."past_transfers" (
  "vshard" smallint NOT NULL,
  "wtid" bytea NOT NULL,
  "kind" smallint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "past_transfers_pkey" PRIMARY KEY ("vshard", "wtid")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.prepared
CREATE TABLE "exchange"."prepared" (
  "vshard" smallint NOT NULL,
  "wtid" bytea NOT NULL,
  "kind" smallint NOT NULL,
  "account" bytea NOT NULL,
  "request_uid" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "h_payto" bytea NOT NULL,
  "exchange_base_url" text COLLATE "C" NOT NULL,
  "time" bigint NOT NULL,
  "finished" bigint,
  "failed" text COLLATE "C",
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_open" bytea,
  "ix_failed" bytea,
  CONSTRAINT "prepared_pkey" PRIMARY KEY ("vshard", "wtid")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "prepared_open" ON "exchange"."prepared" USING btree ("ix_open") WHERE "ix_open" IS NOT NULL;
CREATE INDEX "prepared_failed" ON "exchange"."prepared" USING btree ("ix_failed") WHERE "ix_failed" IS NOT NULL;
-- exchange.purse_deletions
CREATE TABLE "exchange"."purse_deletions" (
  "vshard" smallint NOT NULL,
  "purse_pub" bytea NOT NULL,
  "purse_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "purse_deletions_pkey" PRIMARY KEY ("vshard", "purse_pub")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.purse_deposits
CREATE TABLE "exchange"."purse_deposits" (
  "vshard" smallint NOT NULL,
  "purse_pub" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "denom" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "coin_sig" bytea NOT NULL,
  "refunded" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_coin" bigint,
  CONSTRAINT "purse_deposits_pkey" PRIMARY KEY ("vshard", "purse_pub", "coin_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "purse_deposits_by_coin" ON "exchange"."purse_deposits" USING btree ("ix_by_coin") WHERE "ix_by_coin" IS NOT NULL;
-- exchange.purse_merges
CREATE TABLE "exchange"."purse_merges" (
  "vshard" smallint NOT NULL,
  "purse_pub" bytea NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "h_payto" bytea NOT NULL,
  "merge_sig" bytea NOT NULL,
  "reserve_sig" bytea NOT NULL,
  "merge_time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_reserve" bigint,
  CONSTRAINT "purse_merges_pkey" PRIMARY KEY ("vshard", "purse_pub")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "purse_merges_by_reserve" ON "exchange"."purse_merges" USING btree ("ix_by_reserve") WHERE "ix_by_reserve" IS NOT NULL;
-- exchange.purses
CREATE TABLE "exchange"."purses" (
  "vshard" smallint NOT NULL,
  "purse_pub" bytea NOT NULL,
  "merge_pub" bytea NOT NULL,
  "h_contract_terms" bytea NOT NULL,
  "min_age" bigint NOT NULL,
  "mode" smallint NOT NULL,
  "target_val" bigint NOT NULL,
  "target_frac" integer NOT NULL,
  "purse_fee_val" bigint NOT NULL,
  "purse_fee_frac" integer NOT NULL,
  "created" bigint NOT NULL,
  "expiration" bigint NOT NULL,
  "purse_sig" bytea NOT NULL,
  "coins" bigint NOT NULL,
  "contributed_val" bigint NOT NULL,
  "contributed_frac" integer NOT NULL,
  "balance_val" bigint NOT NULL,
  "balance_frac" integer NOT NULL,
  "state" smallint NOT NULL,
  "decided" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_expiration" bytea,
  CONSTRAINT "purses_pkey" PRIMARY KEY ("vshard", "purse_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "purses_by_expiration" ON "exchange"."purses" USING btree ("ix_by_expiration") WHERE "ix_by_expiration" IS NOT NULL;
-- exchange.recoup_credits
CREATE TABLE "exchange"."recoup_credits" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "n" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "recoup_credits_pkey" PRIMARY KEY ("vshard", "reserve_pub", "coin_pub", "n")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.recoup_refresh_credits
CREATE TABLE "exchange"."recoup_refresh_credits" (
  "vshard" smallint NOT NULL,
  "old_coin_pub" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "n" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "recoup_refresh_credits_pkey" PRIMARY KEY ("vshard", "old_coin_pub", "coin_pub", "n")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.recoup_refreshes
CREATE TABLE "exchange"."recoup_refreshes" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "n" bigint NOT NULL,
  "old_coin_pub" bytea NOT NULL,
  "rc" bytea NOT NULL,
  "h_coin_ev" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "coin_blind" bytea NOT NULL,
  "coin_sig" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "recoup_refreshes_pkey" PRIMARY KEY ("vshard", "coin_pub", "n")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.recoups
CREATE TABLE "exchange"."recoups" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "n" bigint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "h_coin_ev" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "coin_blind" bytea NOT NULL,
  "coin_sig" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "recoups_pkey" PRIMARY KEY ("vshard", "coin_pub", "n")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.refunds
CREATE TABLE "exchange"."refunds" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "merchant_pub" bytea NOT NULL,
  "h_contract_terms" bytea NOT NULL,
  "rtransaction_id" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "merchant_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "refunds_pkey" PRIMARY KEY ("vshard", "coin_pub", "merchant_pub", "h_contract_terms", "rtransaction_id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.reserve_accounts
CREATE TABLE "exchange"."reserve_accounts" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "purses_active" bigint NOT NULL,
  "purses_allowed" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "reserve_accounts_pkey" PRIMARY KEY ("vshard", "reserve_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- exchange.reserve_open_deposits
CREATE TABLE "exchange"."reserve_open_deposits" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "request_time" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "reserve_sig" bytea NOT NULL,
  "coin_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "reserve_open_deposits_pkey" PRIMARY KEY ("vshard", "coin_pub", "reserve_pub", "request_time")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.reserve_opens
CREATE TABLE "exchange"."reserve_opens" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "request_time" bigint NOT NULL,
  "reserve_sig" bytea NOT NULL,
  "requested_expiration" bigint NOT NULL,
  "requested_purses" bigint NOT NULL,
  "payment_val" bigint NOT NULL,
  "payment_frac" integer NOT NULL,
  "cost_val" bigint NOT NULL,
  "cost_frac" integer NOT NULL,
  "expiration" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "reserve_opens_pkey" PRIMARY KEY ("vshard", "reserve_pub", "request_time")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.reserves
CREATE TABLE "exchange"."reserves" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "balance_val" bigint NOT NULL,
  "balance_frac" integer NOT NULL,
  "expiration" bigint NOT NULL,
  "gc" bigint NOT NULL,
  "origin" bytea,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_expiration" bytea,
  CONSTRAINT "reserves_pkey" PRIMARY KEY ("vshard", "reserve_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "reserves_by_expiration" ON "exchange"."reserves" USING btree ("ix_by_expiration") WHERE "ix_by_expiration" IS NOT NULL;
-- exchange.reserves_in
CREATE TABLE "exchange"."reserves_in" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "account" bytea NOT NULL,
  "bank_row" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "h_payto" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_bank_row" bytea,
  CONSTRAINT "reserves_in_pkey" PRIMARY KEY ("vshard", "reserve_pub", "account", "bank_row")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "reserves_in_by_bank_row" ON "exchange"."reserves_in" USING btree ("ix_by_bank_row") WHERE "ix_by_bank_row" IS NOT NULL;
-- exchange.reveals
CREATE TABLE "exchange"."reveals" (
  "vshard" smallint NOT NULL,
  "coin_pub" bytea NOT NULL,
  "rc" bytea NOT NULL,
  "transfer_pub" bytea NOT NULL,
  "transfer_privs" bytea NOT NULL,
  "rms" bytea,
  "fresh" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_coin_ev" bigint[],
  CONSTRAINT "reveals_pkey" PRIMARY KEY ("vshard", "coin_pub", "rc")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "reveals_by_coin_ev" ON "exchange"."reveals" USING gin ("ix_by_coin_ev") WHERE "ix_by_coin_ev" IS NOT NULL;
-- exchange.revocations
CREATE TABLE "exchange"."revocations" (
  "vshard" smallint NOT NULL,
  "serial" bigint NOT NULL,
  "master_sig" bytea NOT NULL,
  "time" bigint NOT NULL,
  "record_serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "revocations_pkey" PRIMARY KEY ("vshard", "serial")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.signing_keys
CREATE TABLE "exchange"."signing_keys" (
  "vshard" smallint NOT NULL,
  "exchange_pub" bytea NOT NULL,
  "start" bigint NOT NULL,
  "expire" bigint NOT NULL,
  "end" bigint NOT NULL,
  "master_sig" bytea NOT NULL,
  "revoked" bytea,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "signing_keys_pkey" PRIMARY KEY ("vshard", "exchange_pub")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.wire_accounts
CREATE TABLE "exchange"."wire_accounts" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "payto_uri" text COLLATE "C" NOT NULL,
  "master_sig" bytea NOT NULL,
  "last_change" bigint NOT NULL,
  "enabled" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "wire_accounts_pkey" PRIMARY KEY ("vshard", "h_payto")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.wire_fees
CREATE TABLE "exchange"."wire_fees" (
  "vshard" smallint NOT NULL,
  "method" text COLLATE "C" NOT NULL,
  "start" bigint NOT NULL,
  "end" bigint NOT NULL,
  "wire_fee_val" bigint NOT NULL,
  "wire_fee_frac" integer NOT NULL,
  "closing_fee_val" bigint NOT NULL,
  "closing_fee_frac" integer NOT NULL,
  "master_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_method" bigint,
  CONSTRAINT "wire_fees_pkey" PRIMARY KEY ("vshard", "method", "start")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "wire_fees_by_method" ON "exchange"."wire_fees" USING btree ("ix_by_method") WHERE "ix_by_method" IS NOT NULL;
-- exchange.wire_out
CREATE TABLE "exchange"."wire_out" (
  "vshard" smallint NOT NULL,
  "wtid" bytea NOT NULL,
  "time" bigint NOT NULL,
  "h_payto" bytea NOT NULL,
  "merchant_pub" bytea NOT NULL,
  "account" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "wire_fee_val" bigint NOT NULL,
  "wire_fee_frac" integer NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_target_time" bytea,
  CONSTRAINT "wire_out_pkey" PRIMARY KEY ("vshard", "wtid")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "wire_out_by_target_time" ON "exchange"."wire_out" USING btree ("ix_by_target_time") WHERE "ix_by_target_time" IS NOT NULL;
-- exchange.wire_targets
CREATE TABLE "exchange"."wire_targets" (
  "vshard" smallint NOT NULL,
  "h_payto" bytea NOT NULL,
  "payto_uri" text COLLATE "C" NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "wire_targets_pkey" PRIMARY KEY ("vshard", "h_payto")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- exchange.withdrawals
CREATE TABLE "exchange"."withdrawals" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "h_coin_ev" bytea NOT NULL,
  "denom" bigint NOT NULL,
  "reserve_sig" bytea NOT NULL,
  "ev_sig" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_coin_ev" bigint,
  CONSTRAINT "withdrawals_pkey" PRIMARY KEY ("vshard", "reserve_pub", "h_coin_ev")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "withdrawals_by_coin_ev" ON "exchange"."withdrawals" USING btree ("ix_by_coin_ev") WHERE "ix_by_coin_ev" IS NOT NULL;
-- exchange.worker_leases
CREATE TABLE "exchange"."worker_leases" (
  "vshard" smallint NOT NULL,
  "job" smallint NOT NULL,
  "account" bytea NOT NULL,
  "start" bigint NOT NULL,
  "end" bigint NOT NULL,
  "latest" bigint NOT NULL,
  "is_complete" boolean NOT NULL,
  "holder" bigint NOT NULL,
  "until" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "worker_leases_pkey" PRIMARY KEY ("vshard", "job", "account", "start")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "worker_leases_by_job" ON "exchange"."worker_leases" USING btree ("job", "account");
-- exchange.writers
CREATE TABLE "exchange"."writers" (
  "writer_id" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  "epoch" bigint NOT NULL,
  "batch" bigint NOT NULL,
  "node" text COLLATE "C" NOT NULL,
  "seen" timestamp with time zone NOT NULL,
  CONSTRAINT "writers_pkey" PRIMARY KEY ("writer_id")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- ledger.accounts
CREATE TABLE "ledger"."accounts" (
  "vshard" smallint NOT NULL,
  "page" bigint NOT NULL,
  "records" bigint NOT NULL,
  "accounts" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "accounts_pkey" PRIMARY KEY ("vshard", "page")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.id_filters
CREATE TABLE "ledger"."id_filters" (
  "vshard" smallint NOT NULL,
  "run" bigint NOT NULL,
  "section" bigint NOT NULL,
  "first_page" bigint NOT NULL,
  "fences" bytea NOT NULL,
  "descriptor" bytea NOT NULL,
  "fingerprints" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "id_filters_pkey" PRIMARY KEY ("vshard", "run", "section")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.id_pages
CREATE TABLE "ledger"."id_pages" (
  "vshard" smallint NOT NULL,
  "run" bigint NOT NULL,
  "page" bigint NOT NULL,
  "entries" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "id_pages_pkey" PRIMARY KEY ("vshard", "run", "page")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.log
CREATE TABLE "ledger"."log" (
  "vshard" smallint NOT NULL,
  "first" bigint NOT NULL,
  "clock" bigint NOT NULL,
  "digest" bytea NOT NULL,
  "records" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "log_pkey" PRIMARY KEY ("vshard", "first")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.marks
CREATE TABLE "ledger"."marks" (
  "vshard" smallint NOT NULL,
  "row" bigint NOT NULL,
  "marks" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "marks_pkey" PRIMARY KEY ("vshard", "row")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.meta
CREATE TABLE "ledger"."meta" (
  "singleton" boolean NOT NULL,
  "store_id" bytea NOT NULL,
  "sip_key" bytea NOT NULL,
  "partitions" smallint NOT NULL,
  "schema_version" integer NOT NULL,
  "program" text COLLATE "C" NOT NULL,
  "serial_base" bigint NOT NULL,
  "cluster_id" bigint NOT NULL,
  "currency" text COLLATE "C",
  "citus" boolean NOT NULL,
  "created" timestamp with time zone NOT NULL,
  CONSTRAINT "meta_pkey" PRIMARY KEY ("singleton")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- ledger.pendings
CREATE TABLE "ledger"."pendings" (
  "vshard" smallint NOT NULL,
  "row" bigint NOT NULL,
  "entries" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "pendings_pkey" PRIMARY KEY ("vshard", "row")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.rows
CREATE TABLE "ledger"."rows" (
  "vshard" smallint NOT NULL,
  "group" bigint NOT NULL,
  "rows" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "rows_pkey" PRIMARY KEY ("vshard", "group")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.snapshot
CREATE TABLE "ledger"."snapshot" (
  "vshard" smallint NOT NULL,
  "id" smallint NOT NULL,
  "hash_key" bytea NOT NULL,
  "records" bigint NOT NULL,
  "target" bigint NOT NULL,
  "log_rows" bigint NOT NULL,
  "accounts" bigint NOT NULL,
  "transfers" bigint NOT NULL,
  "burnt" bigint NOT NULL,
  "pendings" bigint NOT NULL,
  "digest" bytea NOT NULL,
  "clock" bigint NOT NULL,
  "last_movement" bigint NOT NULL,
  "mark_rows" bigint NOT NULL,
  "pending_rows_from" bigint NOT NULL,
  "pending_rows_to" bigint NOT NULL,
  "pending_entries" bigint NOT NULL,
  "pending_rows_old" bigint NOT NULL,
  "next_run" bigint NOT NULL,
  "runs" bytea NOT NULL,
  "old_runs" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "snapshot_pkey" PRIMARY KEY ("vshard", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- ledger.writers
CREATE TABLE "ledger"."writers" (
  "writer_id" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  "epoch" bigint NOT NULL,
  "batch" bigint NOT NULL,
  "node" text COLLATE "C" NOT NULL,
  "seen" timestamp with time zone NOT NULL,
  CONSTRAINT "writers_pkey" PRIMARY KEY ("writer_id")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- merchant.access_tokens
CREATE TABLE "merchant"."access_tokens" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "token_hash" bytea NOT NULL,
  "row_id" bigint NOT NULL,
  "scope" text COLLATE "C" NOT NULL,
  "description" text COLLATE "C" NOT NULL,
  "created" bigint NOT NULL,
  "expires" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_instance" bigint,
  CONSTRAINT "access_tokens_pkey" PRIMARY KEY ("vshard", "instance", "token_hash")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "access_tokens_by_instance" ON "merchant"."access_tokens" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.account_kycs
CREATE TABLE "merchant"."account_kycs" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "h_wire" bytea NOT NULL,
  "exchange_url" text COLLATE "C" NOT NULL,
  "requirement_row" bigint,
  "checked" bigint NOT NULL,
  "http_status" bigint NOT NULL,
  "exchange_code" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_instance" bigint,
  CONSTRAINT "account_kycs_pkey" PRIMARY KEY ("vshard", "instance", "h_wire", "exchange_url")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "account_kycs_by_instance" ON "merchant"."account_kycs" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.coin_returns
CREATE TABLE "merchant"."coin_returns" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "exchange_url" text COLLATE "C" NOT NULL,
  "next" bigint NOT NULL,
  "failures" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_next" bytea,
  CONSTRAINT "coin_returns_pkey" PRIMARY KEY ("vshard", "order", "coin_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "coin_returns_by_next" ON "merchant"."coin_returns" USING btree ("ix_by_next") WHERE "ix_by_next" IS NOT NULL;
-- merchant.exchange_signkeys
CREATE TABLE "merchant"."exchange_signkeys" (
  "vshard" smallint NOT NULL,
  "master_pub" bytea NOT NULL,
  "exchange_pub" bytea NOT NULL,
  "first_seen" bigint NOT NULL,
  "stamp_expire" bigint NOT NULL,
  "stamp_end" bigint NOT NULL,
  "withdrawn" bigint,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "exchange_signkeys_pkey" PRIMARY KEY ("vshard", "master_pub", "exchange_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "exchange_signkeys_by_exchange" ON "merchant"."exchange_signkeys" USING btree ("master_pub");
-- merchant.instance_accounts
CREATE TABLE "merchant"."instance_accounts" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "h_wire" bytea NOT NULL,
  "payto_uri" text COLLATE "C" NOT NULL,
  "salt" bytea NOT NULL,
  "active" boolean NOT NULL,
  "added" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_instance" bigint,
  CONSTRAINT "instance_accounts_pkey" PRIMARY KEY ("vshard", "instance", "h_wire")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "instance_accounts_by_instance" ON "merchant"."instance_accounts" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.instances
CREATE TABLE "merchant"."instances" (
  "vshard" smallint NOT NULL,
  "id" text COLLATE "C" NOT NULL,
  "merchant_pub" bytea NOT NULL,
  "merchant_priv" bytea,
  "token_hash" bytea,
  "name" text COLLATE "C" NOT NULL,
  "address" text COLLATE "C" NOT NULL,
  "jurisdiction" text COLLATE "C" NOT NULL,
  "email" text COLLATE "C",
  "website" text COLLATE "C",
  "logo" text COLLATE "C",
  "default_max_wire_fee_val" bigint NOT NULL,
  "default_max_wire_fee_frac" integer NOT NULL,
  "default_max_deposit_fee_val" bigint NOT NULL,
  "default_max_deposit_fee_frac" integer NOT NULL,
  "default_wire_fee_amortization" bigint NOT NULL,
  "default_wire_transfer_delay" bigint NOT NULL,
  "default_pay_delay" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "instances_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- merchant.meta
CREATE TABLE "merchant"."meta" (
  "singleton" boolean NOT NULL,
  "store_id" bytea NOT NULL,
  "sip_key" bytea NOT NULL,
  "partitions" smallint NOT NULL,
  "schema_version" integer NOT NULL,
  "program" text COLLATE "C" NOT NULL,
  "serial_base" bigint NOT NULL,
  "cluster_id" bigint NOT NULL,
  "currency" text COLLATE "C",
  "citus" boolean NOT NULL,
  "created" timestamp with time zone NOT NULL,
  CONSTRAINT "meta_pkey" PRIMARY KEY ("singleton")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- merchant.order_deposits
CREATE TABLE "merchant"."order_deposits" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "exchange_url" text COLLATE "C" NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "deposit_fee_val" bigint NOT NULL,
  "deposit_fee_frac" integer NOT NULL,
  "refund_fee_val" bigint NOT NULL,
  "refund_fee_frac" integer NOT NULL,
  "wire_fee_val" bigint NOT NULL,
  "wire_fee_frac" integer NOT NULL,
  "exchange_time" bigint NOT NULL,
  "exchange_pub" bytea NOT NULL,
  "exchange_sig" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "order_deposits_pkey" PRIMARY KEY ("vshard", "order", "coin_pub")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- merchant.order_refunds
CREATE TABLE "merchant"."order_refunds" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "rtransaction_id" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "time" bigint NOT NULL,
  "exchange_pub" bytea,
  "exchange_sig" bytea,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "order_refunds_pkey" PRIMARY KEY ("vshard", "order", "coin_pub", "rtransaction_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- merchant.order_sessions
CREATE TABLE "merchant"."order_sessions" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "session" bytea NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "order_sessions_pkey" PRIMARY KEY ("vshard", "order", "session")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- merchant.order_wires
CREATE TABLE "merchant"."order_wires" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "coin_pub" bytea NOT NULL,
  "transfer" bytea NOT NULL,
  "exchange_url" text COLLATE "C" NOT NULL,
  "wtid" bytea NOT NULL,
  "execution_time" bigint NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "confirmed" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_transfer" bigint,
  CONSTRAINT "order_wires_pkey" PRIMARY KEY ("vshard", "order", "coin_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "order_wires_by_transfer" ON "merchant"."order_wires" USING btree ("ix_by_transfer") WHERE "ix_by_transfer" IS NOT NULL;
-- merchant.orders
CREATE TABLE "merchant"."orders" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "order_id" text COLLATE "C" NOT NULL,
  "row_id" bigint NOT NULL,
  "created" bigint NOT NULL,
  "claim_token" bytea,
  "h_request" bytea NOT NULL,
  "terms" text COLLATE "C" NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "max_fee_val" bigint NOT NULL,
  "max_fee_frac" integer NOT NULL,
  "max_wire_fee_val" bigint NOT NULL,
  "max_wire_fee_frac" integer NOT NULL,
  "wire_fee_amortization" bigint NOT NULL,
  "fulfillment_url" text COLLATE "C",
  "pay_deadline" bigint NOT NULL,
  "nonce" text COLLATE "C",
  "h_contract" bytea,
  "paid" bigint,
  "refund_approved_val" bigint NOT NULL,
  "refund_approved_frac" integer NOT NULL,
  "wired" boolean NOT NULL,
  "products" bytea NOT NULL,
  "quantities" bytea NOT NULL,
  "holds_stock" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_row" bytea,
  "ix_by_contract" bigint,
  "ix_by_end" bytea,
  CONSTRAINT "orders_pkey" PRIMARY KEY ("vshard", "order")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "orders_by_row" ON "merchant"."orders" USING btree ("ix_by_row") WHERE "ix_by_row" IS NOT NULL;
CREATE INDEX "orders_by_contract" ON "merchant"."orders" USING btree ("ix_by_contract") WHERE "ix_by_contract" IS NOT NULL;
CREATE INDEX "orders_by_end" ON "merchant"."orders" USING btree ("ix_by_end") WHERE "ix_by_end" IS NOT NULL;
-- merchant.paid_sessions
CREATE TABLE "merchant"."paid_sessions" (
  "vshard" smallint NOT NULL,
  "purchase" bytea NOT NULL,
  "order" bytea NOT NULL,
  "order_id" text COLLATE "C" NOT NULL,
  "time" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_order" bigint,
  CONSTRAINT "paid_sessions_pkey" PRIMARY KEY ("vshard", "purchase")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "paid_sessions_by_order" ON "merchant"."paid_sessions" USING btree ("ix_by_order") WHERE "ix_by_order" IS NOT NULL;
-- merchant.payment_claims
CREATE TABLE "merchant"."payment_claims" (
  "vshard" smallint NOT NULL,
  "order" bytea NOT NULL,
  "coins" bytea NOT NULL,
  "amounts" bytea NOT NULL,
  "exchange_urls" bytea NOT NULL,
  "until" bigint NOT NULL,
  "over" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_over" bytea,
  CONSTRAINT "payment_claims_pkey" PRIMARY KEY ("vshard", "order")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "payment_claims_by_over" ON "merchant"."payment_claims" USING btree ("ix_by_over") WHERE "ix_by_over" IS NOT NULL;
-- merchant.pending_webhooks
CREATE TABLE "merchant"."pending_webhooks" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "event" bytea NOT NULL,
  "webhook_id" text COLLATE "C" NOT NULL,
  "url" text COLLATE "C" NOT NULL,
  "http_method" text COLLATE "C" NOT NULL,
  "header" text COLLATE "C",
  "body" text COLLATE "C",
  "next" bigint NOT NULL,
  "failures" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_next" bytea,
  "ix_by_instance" bigint,
  CONSTRAINT "pending_webhooks_pkey" PRIMARY KEY ("vshard", "instance", "event")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "pending_webhooks_by_next" ON "merchant"."pending_webhooks" USING btree ("ix_by_next") WHERE "ix_by_next" IS NOT NULL;
CREATE INDEX "pending_webhooks_by_instance" ON "merchant"."pending_webhooks" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.product_locks
CREATE TABLE "merchant"."product_locks" (
  "vshard" smallint NOT NULL,
  "lock" bytea NOT NULL,
  "product_id" text COLLATE "C" NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "quantity" bigint NOT NULL,
  "until" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_end" bytea,
  CONSTRAINT "product_locks_pkey" PRIMARY KEY ("vshard", "lock", "product_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "product_locks_by_end" ON "merchant"."product_locks" USING btree ("ix_by_end") WHERE "ix_by_end" IS NOT NULL;
-- merchant.products
CREATE TABLE "merchant"."products" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "product_id" text COLLATE "C" NOT NULL,
  "details" text COLLATE "C" NOT NULL,
  "price_val" bigint NOT NULL,
  "price_frac" integer NOT NULL,
  "minimum_age" smallint NOT NULL,
  "total_stock" bigint,
  "sold" bigint NOT NULL,
  "lost" bigint NOT NULL,
  "locked" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_id" bytea,
  CONSTRAINT "products_pkey" PRIMARY KEY ("vshard", "instance", "product_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "products_by_id" ON "merchant"."products" USING btree ("ix_by_id") WHERE "ix_by_id" IS NOT NULL;
-- merchant.state
CREATE TABLE "merchant"."state" (
  "vshard" smallint NOT NULL,
  "id" smallint NOT NULL,
  "currency" text COLLATE "C" NOT NULL,
  "token_salt" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "state_pkey" PRIMARY KEY ("vshard", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- merchant.templates
CREATE TABLE "merchant"."templates" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "template_id" text COLLATE "C" NOT NULL,
  "description" text COLLATE "C" NOT NULL,
  "contract" text COLLATE "C" NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_instance" bigint,
  CONSTRAINT "templates_pkey" PRIMARY KEY ("vshard", "instance", "template_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "templates_by_instance" ON "merchant"."templates" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.tip_pickups
CREATE TABLE "merchant"."tip_pickups" (
  "vshard" smallint NOT NULL,
  "tip_id" bytea NOT NULL,
  "pickup_id" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "planchets" bigint NOT NULL,
  "time" bigint NOT NULL,
  "signatures" text COLLATE "C",
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "tip_pickups_pkey" PRIMARY KEY ("vshard", "tip_id", "pickup_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- merchant.tip_reserves
CREATE TABLE "merchant"."tip_reserves" (
  "vshard" smallint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "reserve_priv" bytea,
  "exchange_url" text COLLATE "C" NOT NULL,
  "payto_uri" text COLLATE "C" NOT NULL,
  "created" bigint NOT NULL,
  "expires" bigint NOT NULL,
  "merchant_initial_val" bigint NOT NULL,
  "merchant_initial_frac" integer NOT NULL,
  "exchange_initial_val" bigint NOT NULL,
  "exchange_initial_frac" integer NOT NULL,
  "committed_val" bigint NOT NULL,
  "committed_frac" integer NOT NULL,
  "picked_up_val" bigint NOT NULL,
  "picked_up_frac" integer NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_instance" bigint,
  CONSTRAINT "tip_reserves_pkey" PRIMARY KEY ("vshard", "reserve_pub")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "tip_reserves_by_instance" ON "merchant"."tip_reserves" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.tips
CREATE TABLE "merchant"."tips" (
  "vshard" smallint NOT NULL,
  "tip_id" bytea NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "row_id" bigint NOT NULL,
  "reserve_pub" bytea NOT NULL,
  "amount_val" bigint NOT NULL,
  "amount_frac" integer NOT NULL,
  "picked_up_val" bigint NOT NULL,
  "picked_up_frac" integer NOT NULL,
  "justification" text COLLATE "C" NOT NULL,
  "next_url" text COLLATE "C" NOT NULL,
  "expires" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_row" bytea,
  "ix_by_reserve" bigint,
  CONSTRAINT "tips_pkey" PRIMARY KEY ("vshard", "tip_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "tips_by_row" ON "merchant"."tips" USING btree ("ix_by_row") WHERE "ix_by_row" IS NOT NULL;
CREATE INDEX "tips_by_reserve" ON "merchant"."tips" USING btree ("ix_by_reserve") WHERE "ix_by_reserve" IS NOT NULL;
-- merchant.transfers
CREATE TABLE "merchant"."transfers" (
  "vshard" smallint NOT NULL,
  "transfer" bytea NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "row_id" bigint NOT NULL,
  "exchange_url" text COLLATE "C" NOT NULL,
  "wtid" bytea NOT NULL,
  "payto_uri" text COLLATE "C" NOT NULL,
  "credit_amount_val" bigint,
  "credit_amount_frac" integer,
  "total_val" bigint,
  "total_frac" integer,
  "wire_fee_val" bigint,
  "wire_fee_frac" integer,
  "execution_time" bigint,
  "verified" boolean NOT NULL,
  "problem" bigint NOT NULL,
  "exchange_pub" bytea,
  "exchange_sig" bytea,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_row" bytea,
  CONSTRAINT "transfers_pkey" PRIMARY KEY ("vshard", "transfer")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "transfers_by_row" ON "merchant"."transfers" USING btree ("ix_by_row") WHERE "ix_by_row" IS NOT NULL;
-- merchant.webhooks
CREATE TABLE "merchant"."webhooks" (
  "vshard" smallint NOT NULL,
  "instance" text COLLATE "C" NOT NULL,
  "webhook_id" text COLLATE "C" NOT NULL,
  "event_type" text COLLATE "C" NOT NULL,
  "url" text COLLATE "C" NOT NULL,
  "http_method" text COLLATE "C" NOT NULL,
  "header_template" text COLLATE "C",
  "body_template" text COLLATE "C",
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_by_instance" bigint,
  CONSTRAINT "webhooks_pkey" PRIMARY KEY ("vshard", "instance", "webhook_id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "webhooks_by_instance" ON "merchant"."webhooks" USING btree ("ix_by_instance") WHERE "ix_by_instance" IS NOT NULL;
-- merchant.writers
CREATE TABLE "merchant"."writers" (
  "writer_id" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  "epoch" bigint NOT NULL,
  "batch" bigint NOT NULL,
  "node" text COLLATE "C" NOT NULL,
  "seen" timestamp with time zone NOT NULL,
  CONSTRAINT "writers_pkey" PRIMARY KEY ("writer_id")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- switch.accounts
CREATE TABLE "switch"."accounts" (
  "vshard" smallint NOT NULL,
  "participant" bigint NOT NULL,
  "currency" bigint NOT NULL,
  "kind" smallint NOT NULL,
  "id" bigint NOT NULL,
  "active" boolean NOT NULL,
  "ndc" bytea,
  "alarm_percentage" smallint NOT NULL,
  "over_limit" integer NOT NULL,
  "gross" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "accounts_pkey" PRIMARY KEY ("vshard", "participant", "currency", "kind")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- switch.approvals
CREATE TABLE "switch"."approvals" (
  "vshard" smallint NOT NULL,
  "id" bigint NOT NULL,
  "change" text COLLATE "C" NOT NULL,
  "proposed_by" text COLLATE "C" NOT NULL,
  "proposed" bigint NOT NULL,
  "state" smallint NOT NULL,
  "decided_by" text COLLATE "C" NOT NULL,
  "decided" bigint NOT NULL,
  "result" text COLLATE "C" NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "approvals_pkey" PRIMARY KEY ("vshard", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- switch.bodies
CREATE TABLE "switch"."bodies" (
  "vshard" smallint NOT NULL,
  "id" bytea NOT NULL,
  "kind" smallint NOT NULL,
  "headers" text COLLATE "C" NOT NULL,
  "body" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "bodies_pkey" PRIMARY KEY ("vshard", "id", "kind")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- switch.bulks
CREATE TABLE "switch"."bulks" (
  "vshard" smallint NOT NULL,
  "id" bytea NOT NULL,
  "state" smallint NOT NULL,
  "payer" bigint NOT NULL,
  "payee" bigint NOT NULL,
  "prepare_hash" bytea NOT NULL,
  "fulfil_hash" bytea,
  "error_hash" bytea,
  "expiration" bigint NOT NULL,
  "unanswered_items" bigint NOT NULL,
  "open_items" bigint NOT NULL,
  "tells_payee" boolean NOT NULL,
  "items" bytea NOT NULL,
  "failed" bytea NOT NULL,
  "completed" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "bulks_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- switch.endpoints
CREATE TABLE "switch"."endpoints" (
  "vshard" smallint NOT NULL,
  "participant" bigint NOT NULL,
  "endpoint" text COLLATE "C" NOT NULL,
  "url" text COLLATE "C" NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "endpoints_pkey" PRIMARY KEY ("vshard", "participant", "endpoint")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "endpoints_by_participant" ON "switch"."endpoints" USING btree ("participant");
-- switch.meta
CREATE TABLE "switch"."meta" (
  "singleton" boolean NOT NULL,
  "store_id" bytea NOT NULL,
  "sip_key" bytea NOT NULL,
  "partitions" smallint NOT NULL,
  "schema_version" integer NOT NULL,
  "program" text COLLATE "C" NOT NULL,
  "serial_base" bigint NOT NULL,
  "cluster_id" bigint NOT NULL,
  "currency" text COLLATE "C",
  "citus" boolean NOT NULL,
  "created" timestamp with time zone NOT NULL,
  CONSTRAINT "meta_pkey" PRIMARY KEY ("singleton")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
-- switch.models
CREATE TABLE "switch"."models" (
  "vshard" smallint NOT NULL,
  "name" text COLLATE "C" NOT NULL,
  "currency" bigint NOT NULL,
  "gross" boolean NOT NULL,
  "require_liquidity_check" boolean NOT NULL,
  "auto_position_reset" boolean NOT NULL,
  "active" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "models_pkey" PRIMARY KEY ("vshard", "name")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- switch.movements
CREATE TABLE "switch"."movements" (
  "vshard" smallint NOT NULL,
  "id" bytea NOT NULL,
  "kind" smallint NOT NULL,
  "state" smallint NOT NULL,
  "participant" bigint NOT NULL,
  "currency" bigint NOT NULL,
  "amount" bytea NOT NULL,
  "headroom" bytea NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "reference" text COLLATE "C" NOT NULL,
  "operator" text COLLATE "C" NOT NULL,
  "created" bigint NOT NULL,
  "changed" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_intended" bytea,
  "ix_by_participant" bytea,
  CONSTRAINT "movements_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "movements_intended" ON "switch"."movements" USING btree ("ix_intended") WHERE "ix_intended" IS NOT NULL;
CREATE INDEX "movements_by_participant" ON "switch"."movements" USING btree ("ix_by_participant") WHERE "ix_by_participant" IS NOT NULL;
-- switch.nets
CREATE TABLE "switch"."nets" (
  "vshard" smallint NOT NULL,
  "window" bigint NOT NULL,
  "participant" bigint NOT NULL,
  "currency" bigint NOT NULL,
  "sent" bytea NOT NULL,
  "sent_count" bigint NOT NULL,
  "received" bytea NOT NULL,
  "received_count" bigint NOT NULL,
  "settlement" bigint NOT NULL,
  "settled" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "nets_pkey" PRIMARY KEY ("vshard", "window", "participant", "currency")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "nets_by_window" ON "switch"."nets" USING btree ("window");
-- switch.open_approvals
CREATE TABLE "switch"."open_approvals" (
  "vshard" smallint NOT NULL,
  "subject" bytea NOT NULL,
  "approval" bigint NOT NULL,
  "proposed_by" text COLLATE "C" NOT NULL,
  "change" bytea NOT NULL,
  "proposed" bigint NOT NULL,
  "expires" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_all" bigint,
  CONSTRAINT "open_approvals_pkey" PRIMARY KEY ("vshard", "subject")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "open_approvals_all" ON "switch"."open_approvals" USING btree ("ix_all") WHERE "ix_all" IS NOT NULL;
-- switch.outbox
CREATE TABLE "switch"."outbox" (
  "vshard" smallint NOT NULL,
  "participant" bigint NOT NULL,
  "number" bigint NOT NULL,
  "kind" smallint NOT NULL,
  "id" bytea NOT NULL,
  "code" integer NOT NULL,
  "text" text COLLATE "C" NOT NULL,
  "created" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_in_order" bytea,
  CONSTRAINT "outbox_pkey" PRIMARY KEY ("vshard", "participant", "number")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "outbox_in_order" ON "switch"."outbox" USING btree ("ix_in_order") WHERE "ix_in_order" IS NOT NULL;
-- switch.participants
CREATE TABLE "switch"."participants" (
  "vshard" smallint NOT NULL,
  "name" text COLLATE "C" NOT NULL,
  "number" bigint NOT NULL,
  "row_name" text COLLATE "C" NOT NULL,
  "active" boolean NOT NULL,
  "created" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "participants_pkey" PRIMARY KEY ("vshard", "name")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- switch.parties
CREATE TABLE "switch"."parties" (
  "vshard" smallint NOT NULL,
  "party" bytea NOT NULL,
  "currency" bigint NOT NULL,
  "participant" bigint NOT NULL,
  "registered" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "parties_pkey" PRIMARY KEY ("vshard", "party", "currency")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "parties_by_party" ON "switch"."parties" USING btree ("party");
-- switch.settlement_accounts
CREATE TABLE "switch"."settlement_accounts" (
  "vshard" smallint NOT NULL,
  "settlement" bigint NOT NULL,
  "participant" bigint NOT NULL,
  "currency" bigint NOT NULL,
  "state" smallint NOT NULL,
  "sent" bytea NOT NULL,
  "received" bytea NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "reference" text COLLATE "C" NOT NULL,
  "beyond_headroom" boolean NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "settlement_accounts_pkey" PRIMARY KEY ("vshard", "settlement", "participant", "currency")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX "settlement_accounts_by_settlement" ON "switch"."settlement_accounts" USING btree ("settlement");
-- switch.settlements
CREATE TABLE "switch"."settlements" (
  "vshard" smallint NOT NULL,
  "id" bigint NOT NULL,
  "state" smallint NOT NULL,
  "model" text COLLATE "C" NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "created" bigint NOT NULL,
  "changed" bigint NOT NULL,
  "windows" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "settlements_pkey" PRIMARY KEY ("vshard", "id")
) WITH (autovacuum_vacuum_insert_scale_factor=0.05, autovacuum_analyze_scale_factor=0.02);
-- switch.state
CREATE TABLE "switch"."state" (
  "vshard" smallint NOT NULL,
  "id" smallint NOT NULL,
  "next_participant" bigint NOT NULL,
  "next_account" bigint NOT NULL,
  "open_window" bigint NOT NULL,
  "open_in_flight" bigint NOT NULL,
  "open_transfers" bigint NOT NULL,
  "next_settlement" bigint NOT NULL,
  "next_approval" bigint NOT NULL,
  "next_movement" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "state_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- switch.transfers
CREATE TABLE "switch"."transfers" (
  "vshard" smallint NOT NULL,
  "id" bytea NOT NULL,
  "state" smallint NOT NULL,
  "intent" smallint NOT NULL,
  "payer" bigint NOT NULL,
  "payee" bigint NOT NULL,
  "currency" bigint NOT NULL,
  "amount" bytea NOT NULL,
  "condition" bytea NOT NULL,
  "expiration" bigint NOT NULL,
  "prepare_hash" bytea NOT NULL,
  "fulfil_hash" bytea,
  "error_hash" bytea,
  "fulfilment" bytea,
  "completed" bigint NOT NULL,
  "window" bigint NOT NULL,
  "gross" boolean NOT NULL,
  "wants_patch" boolean NOT NULL,
  "error_code" integer NOT NULL,
  "error_text" text COLLATE "C" NOT NULL,
  "bulk" bytea,
  "history" bytea NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  "ix_intended" bytea,
  "ix_by_deadline" bytea,
  "ix_by_bulk" bigint,
  CONSTRAINT "transfers_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
CREATE INDEX "transfers_intended" ON "switch"."transfers" USING btree ("ix_intended") WHERE "ix_intended" IS NOT NULL;
CREATE INDEX "transfers_by_deadline" ON "switch"."transfers" USING btree ("ix_by_deadline") WHERE "ix_by_deadline" IS NOT NULL;
CREATE INDEX "transfers_by_bulk" ON "switch"."transfers" USING btree ("ix_by_bulk") WHERE "ix_by_bulk" IS NOT NULL;
-- switch.windows
CREATE TABLE "switch"."windows" (
  "vshard" smallint NOT NULL,
  "id" bigint NOT NULL,
  "state" smallint NOT NULL,
  "reason" text COLLATE "C" NOT NULL,
  "created" bigint NOT NULL,
  "changed" bigint NOT NULL,
  "in_flight" bigint NOT NULL,
  "transfers" bigint NOT NULL,
  "serial" bigint NOT NULL,
  "version" integer NOT NULL,
  CONSTRAINT "windows_pkey" PRIMARY KEY ("vshard", "id")
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=1000, autovacuum_analyze_scale_factor=0.02, autovacuum_vacuum_cost_delay=1);
-- switch.writers
CREATE TABLE "switch"."writers" (
  "writer_id" bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  "epoch" bigint NOT NULL,
  "batch" bigint NOT NULL,
  "node" text COLLATE "C" NOT NULL,
  "seen" timestamp with time zone NOT NULL,
  CONSTRAINT "writers_pkey" PRIMARY KEY ("writer_id")
) WITH (fillfactor=10, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=2000);
