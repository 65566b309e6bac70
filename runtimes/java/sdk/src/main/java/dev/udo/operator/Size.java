package dev.udo.operator;

import java.util.List;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BaseLargeVariableWidthVector;
import org.apache.arrow.vector.BaseVariableWidthVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.complex.FixedSizeListVector;
import org.apache.arrow.vector.complex.LargeListVector;
import org.apache.arrow.vector.complex.ListVector;
import org.apache.arrow.vector.complex.StructVector;

/** A lower bound of the bytes of the values written: bits and validity bitmaps are left out. */
final class Size {
    long bytes;

    /** Counts these bytes, and returns them. */
    byte[] counted(byte[] data) {
        bytes += data.length;
        return data;
    }

    /** The fixed bytes of a value of this vector; the bytes of text and the elements of lists are counted separately. */
    static int fixed(FieldVector vector) {
        if (vector instanceof BitVector) {
            return 0;
        }
        if (vector instanceof BaseFixedWidthVector v) {
            return v.getTypeWidth();
        }
        if (vector instanceof BaseVariableWidthVector || vector instanceof ListVector) {
            return Integer.BYTES;
        }
        if (vector instanceof BaseLargeVariableWidthVector || vector instanceof LargeListVector) {
            return Long.BYTES;
        }
        if (vector instanceof FixedSizeListVector v) {
            return v.getListSize() * fixed(v.getDataVector());
        }
        return vector instanceof StructVector v ? fixed(v.getChildrenFromFields()) : 0;
    }

    /** The fixed bytes of one value of each of these vectors together. */
    static int fixed(List<FieldVector> vectors) {
        return vectors.stream().mapToInt(Size::fixed).sum();
    }
}
