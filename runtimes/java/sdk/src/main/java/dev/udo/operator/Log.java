package dev.udo.operator;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.text.MessageFormat;
import java.util.List;
import java.util.ResourceBundle;
import udo.operator.v1.Operator.Message;

/** Sends log records to the engine. */
final class Log implements System.Logger {
    private final String name;
    private final Wire wire;

    Log(String name, Wire wire) {
        this.name = name;
        this.wire = wire;
    }

    @Override
    public String getName() {
        return name;
    }

    @Override
    public boolean isLoggable(Level level) {
        return level != Level.OFF;
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
        StringWriter text = new StringWriter().append(message);
        if (thrown != null) {
            thrown.printStackTrace(new PrintWriter(text.append('\n')));
        }
        send(level, text.toString());
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String format, Object... params) {
        send(level, params == null || params.length == 0 ? format : MessageFormat.format(format, params));
    }

    private void send(Level level, String text) {
        var own = switch (level) {
            case ERROR -> udo.operator.v1.Operator.Log.Level.ERROR;
            case WARNING -> udo.operator.v1.Operator.Log.Level.WARNING;
            case INFO, ALL, OFF -> udo.operator.v1.Operator.Log.Level.INFO;
            case DEBUG, TRACE -> udo.operator.v1.Operator.Log.Level.DEBUG;
        };
        try {
            var line = udo.operator.v1.Operator.Log.newBuilder().setLevel(own).setMessage(Text.cut(text, Text.LOG_CHARS));
            wire.send(Message.newBuilder().setLog(line), List.of());
        } catch (IOException e) {
            System.err.println(text); // the engine is gone
        }
    }
}
