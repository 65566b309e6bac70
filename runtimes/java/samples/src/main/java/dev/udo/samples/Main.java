package dev.udo.samples;

import dev.udo.operator.Operator;

/** Runs the sample named by its argument. Your own operator's `main` is one line: Operator.run(new Fraud()). */
final class Main {
    private Main() {}

    public static void main(String[] args) {
        Operator.run(switch (args[0]) {
            case "forward" -> new Forward();
            case "fraud" -> new Fraud();
            case "count" -> new Count();
            case "sessionise" -> new Sessionise();
            case "trade_quotes" -> new TradeQuotes();
            case "news_moves" -> new NewsMoves();
            case "conformance" -> Conformance.of(System.getenv().getOrDefault("UDO_CONFORMANCE", args[args.length - 1]));
            default -> throw new IllegalArgumentException("no sample " + args[0]);
        });
    }
}
